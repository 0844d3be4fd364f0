"""Genotypes: .bed of PLINK 1, two bits each, and .pgen of PLINK 2, read by Pgenlib."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import InputError, needed
from fedpower.rows.arrays import ArraySource
from fedpower.rows.source import Extra, RowSource, surplus_columns
from fedpower.values import Matrix, require_distinct, shown

_MAGIC = b"\x6c\x1b\x01"
"""How a .bed file begins; the third byte means that each variant's samples are stored together."""

_UNKNOWN = "0"
"""An allele that no sample in the file has."""

_COUNTS = np.array(
    [[(2.0, np.nan, 1.0, 0.0)[byte >> shift & 3] for shift in (0, 2, 4, 6)] for byte in range(256)]
)
"""By byte: how often each of its four samples has the variant's first allele; NaN where missing."""

_Count = Callable[[NDArray[np.int64], int, int], Matrix]
"""From places of variants and a range of samples to counts of first alleles, NaN where missing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlinkSource(ArraySource):
    """The samples of a file of genotypes."""

    companions: tuple[Path, Path]
    samples: tuple[str, ...]
    alleles: tuple[tuple[str, str], ...]
    ids: tuple[str, ...]
    count: _Count
    counts_second: tuple[bool, ...]

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> Self:
        require_distinct("columns", columns)
        keep = range(self.width) if self.keep is None else self.keep
        places = {self.ids[place]: place for place in keep}
        chosen, second, absent, different = [], [], [], []
        for column in columns:
            variant, _, allele = column.rpartition("_")
            place = places.get(variant)
            if place is None:
                absent.append(column)
                continue
            alleles = self.alleles[place]
            if allele not in alleles and _UNKNOWN not in alleles:
                different.append(f"{column} ({'/'.join(alleles)})")
            chosen.append(place)
            second.append(alleles[1] in (allele, _UNKNOWN) and alleles[0] != allele)
        if absent or different:
            parts = [f"none of {shown(absent)}"] if absent else []
            parts += [f"other alleles of {shown(different)}"] if different else []
            raise InputError(
                f"{self.name} must have the agreed variants and alleles, got "
                f"{' and '.join(parts)}; leave them out of the list of variants, or flip their strand"
            )
        surplus = [self.ids[place] for place in keep if place not in set(chosen)]
        if surplus and extra == "refuse":
            raise surplus_columns(self.name, "variants", surplus)
        return replace(self, columns=columns, keep=tuple(chosen), counts_second=tuple(second))

    def blocks(self, max_rows: int) -> Iterator[Matrix]:
        """Yield counts of alleles, a row for each sample; by columns, as the file has them."""
        keep = np.arange(self.width) if self.keep is None else np.array(self.keep)
        second = np.array(self.counts_second)[:, np.newaxis]
        for start in range(0, len(self.samples), max_rows):
            cells = self.count(keep, start, min(start + max_rows, len(self.samples)))
            np.subtract(2.0, cells, out=cells, where=second)
            columns, rows = np.nonzero(np.isnan(cells))
            if columns.size and not self.gaps:
                assert self.columns is not None
                raise InputError(
                    f"every genotype of {self.name} must be known, got none for "
                    f"{self.columns[columns[0]]!r} of sample {start + int(rows[0]) + 1}; give frequencies, "
                    "or public offsets of 2p"
                )
            yield cells.T


def _genotypes(
    name: str, samples: Sequence[str], variants: Sequence[tuple[str, str, str, str, str]], **facts: Any
) -> PlinkSource:
    """Return a source that counts the allele of each variant that comes first in the alphabet."""
    ids = [f"{chromosome}:{place}" if own == "." else own for chromosome, place, own, *_ in variants]
    alleles = tuple((first, second) for *_, first, second in variants)
    require_distinct(f"variants of {name}", ids)
    counted = [min(pair, key=lambda allele: (allele == _UNKNOWN, allele)) for pair in alleles]
    return PlinkSource(
        name=name,
        width=len(ids),
        n_rows=len(samples),
        columns=tuple(f"{variant}_{allele}" for variant, allele in zip(ids, counted, strict=True)),
        samples=tuple(samples),
        alleles=alleles,
        ids=tuple(ids),
        counts_second=tuple(allele != pair[0] for allele, pair in zip(counted, alleles, strict=True)),
        **facts,
    )


def plink_source(path: Path, name: str) -> PlinkSource:
    """Return the source of a .bed file with its .bim and .fam."""
    companions = path.with_suffix(".bim"), path.with_suffix(".fam")
    variants, samples = (
        _words(file, f"{name} must have {file.name} next to it, got none") for file in companions
    )
    for file, lines in zip(companions, (variants, samples), strict=True):
        if not lines or any(len(words) != 6 for words in lines):
            raise InputError(f"{file} must have 6 words in every line, got another number")
    n_bytes = -(-len(samples) // 4)
    with path.open("rb") as stream:
        magic = stream.read(len(_MAGIC))
    if magic != _MAGIC or path.stat().st_size != len(_MAGIC) + len(variants) * n_bytes:
        raise InputError(
            f"{name} must be a .bed file of PLINK 1 with {len(variants)} variants of {len(samples)} "
            "samples, variant by variant, got other bytes; write it again with `plink2 --make-bed`"
        )

    def count(keep: NDArray[np.int64], start: int, stop: int) -> Matrix:
        stored = np.memmap(path, dtype=np.uint8, mode="r", offset=len(_MAGIC)).reshape(-1, n_bytes)
        first = start // 4
        is_all = keep.size == len(variants) and bool((keep == np.arange(keep.size)).all())
        part = stored[:, first : -(-stop // 4)] if is_all else stored[keep, first : -(-stop // 4)]
        cells = _COUNTS[part].reshape(keep.size, -1)
        return np.ascontiguousarray(cells[:, start - 4 * first : stop - 4 * first])

    listed = [(words[0], words[3], words[1], words[4], words[5]) for words in variants]
    people = [words[1] for words in samples]
    return _genotypes(name, people, listed, path=path, companions=companions, count=count)


def pgen_source(path: Path, name: str) -> PlinkSource:
    """Return the source of a .pgen file with its .pvar and .psam; ALT is the first allele here."""
    companions = path.with_suffix(".pvar"), path.with_suffix(".psam")
    variants = _table(companions[0], name, ("CHROM", "POS", "ID", "REF", "ALT"))
    samples = _table(companions[1], name, ("IID",))
    several = [words[2] for words in variants if "," in words[4]]
    if several:
        raise InputError(
            f"every variant of {name} must have two alleles, got more for {shown(several, 1)}; split them "
            "with `plink2 --make-pgen multiallelics=-`"
        )

    def opened(start: int, stop: int) -> Any:
        reader = needed("pgenlib", "pgen", f"{name} must be written as .bed, or read with").PgenReader
        subset = np.arange(start, stop, dtype=np.uint32)
        sizes = {"raw_sample_ct": len(samples), "variant_ct": len(variants)}
        try:
            return reader(str(path).encode(), sample_subset=subset, **sizes)
        except (RuntimeError, OSError):
            raise InputError(
                f"{name} must be a .pgen file of PLINK 2 with {len(variants)} variants of {len(samples)} "
                "samples, got other bytes; write it again with `plink2 --make-pgen`"
            ) from None

    def count(keep: NDArray[np.int64], start: int, stop: int) -> Matrix:
        calls = np.empty((keep.size, stop - start), dtype=np.int8)
        with opened(start, stop) as reader:
            reader.read_list(keep.astype(np.uint32), calls)
        return np.where(calls < 0, np.nan, calls.astype(np.float64))

    with opened(0, 1):
        pass
    listed = [
        (chromosome, place, own, _UNKNOWN if alt == "." else alt, ref)
        for chromosome, place, own, ref, alt in variants
    ]
    people = [words[0] for words in samples]
    return _genotypes(name, people, listed, path=path, companions=companions, count=count)


def _table(path: Path, name: str, wanted: tuple[str, ...]) -> list[list[str]]:
    lines = _words(path, f"{name} must have {path.name} next to it, got none")
    head, *rows = [words for words in lines if not words[0].startswith("##")] or [[""]]
    names = [word.lstrip("#") for word in head]
    if not rows or not head[0].startswith("#") or not set(wanted) <= set(names):
        raise InputError(
            f"{path} must have a header with {', '.join(wanted)} and lines after it, got something else"
        )
    places = [names.index(column) for column in wanted]
    if any(len(words) <= max(places) for words in rows):
        raise InputError(f"{path} must have {', '.join(wanted)} in every line, got shorter lines")
    return [[words[place] for place in places] for words in rows]


def _words(path: Path, must: str) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{must} that is readable") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantList:
    """A public list of variants, such as an LD-pruned one."""

    ids: tuple[str, ...]
    alleles: tuple[str, ...] | None = None
    frequencies: NDArray[np.float64] | None = None

    def columns(self, source: RowSource) -> tuple[str, ...]:
        """Return the columns of the listed variants; where no allele is listed, as a file has them."""
        if self.alleles is not None:
            return tuple(f"{one}_{allele}" for one, allele in zip(self.ids, self.alleles, strict=True))
        if not isinstance(source, PlinkSource):
            raise InputError(f"a list of variants must be used with .bed or .pgen files, got {source.name}")
        known = dict(zip(source.ids, source.columns or (), strict=True))
        absent = [one for one in self.ids if one not in known]
        if absent:
            raise InputError(f"{source.name} must have the listed variants, got none of {shown(absent)}")
        return tuple(known[one] for one in self.ids)

    @property
    def offset(self) -> NDArray[np.float64] | None:
        """2p, the expected genotype; None where no frequency is listed."""
        return None if self.frequencies is None else 2.0 * self.frequencies

    @property
    def scale(self) -> NDArray[np.float64] | None:
        """√(2p(1 − p)), its standard deviation in equilibrium; None where no frequency is listed."""
        p = self.frequencies
        return None if p is None else np.sqrt(2.0 * p * (1.0 - p))


def read_variants(path: Path) -> VariantList:
    """Return the variants in a file: ids, a line each (``.prune.in``), or PLINK 2's ``.afreq``."""
    lines = _words(path, f"{path} must be a list of variants, got none")
    if not lines:
        raise InputError(f"{path} must list at least one variant, got none")
    ids = tuple(words[0] for words in lines)
    alleles, frequencies = None, None
    if lines[0][0].startswith("#"):
        ids, alleles, texts = zip(*_table(path, str(path), ("ID", "ALT", "ALT_FREQS")), strict=True)
        try:
            frequencies = np.array(list(map(float, texts)))
        except ValueError:
            raise InputError(f"every ALT_FREQS of {path} must be a number, got something else") from None
    require_distinct(f"variants of {path}", ids)
    fixed = [] if frequencies is None else [ids[at] for at, p in enumerate(frequencies) if not 0 < p < 1]
    if fixed:
        raise InputError(f"every frequency of {path} must be between 0 and 1; check {shown(fixed)}")
    return VariantList(ids=ids, alleles=alleles, frequencies=frequencies)
