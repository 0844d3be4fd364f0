"""Genotypes as PLINK 1 stores them, two bits each."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.rows.arrays import ColumnsByPlace
from fedpower.rows.columns import require_block_size, require_distinct, require_shape, shown
from fedpower.rows.source import Extra, Matrix, RowSource

_MAGIC = b"\x6c\x1b\x01"
"""How a .bed file begins; the third byte says that each variant's samples stand together."""

UNKNOWN = "0"
"""An allele that nobody in the file has."""

_COUNTS = np.array(
    [[(2.0, np.nan, 1.0, 0.0)[byte >> shift & 3] for shift in (0, 2, 4, 6)] for byte in range(256)]
)
"""By byte: how often each of its four samples has the variant's first allele; NaN where missing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlinkSource(ColumnsByPlace):
    """The samples of a .bed file."""

    path: Path
    samples: tuple[str, ...]
    alleles: tuple[tuple[str, str], ...]
    ids: tuple[str, ...]
    other: tuple[bool, ...]
    filling: NDArray[np.float64] | None = None

    @property
    def beside(self) -> tuple[Path, ...]:
        """The files that say what the variants and samples are."""
        return self.path.with_suffix(".bim"), self.path.with_suffix(".fam")

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> Self:
        """Return the source with exactly these variants and counted alleles, in this order."""
        require_distinct("columns", columns)
        keep = range(self.width) if self.keep is None else self.keep
        places = {self.ids[place]: place for place in keep}
        found, other, absent, different = [], [], [], []
        for column in columns:
            variant, _, allele = column.rpartition("_")
            place = places.get(variant)
            if place is None:
                absent.append(column)
                continue
            flipped = _is_second(allele, self.alleles[place])
            if flipped is None:
                different.append(f"{column} ({'/'.join(self.alleles[place])})")
                continue
            found.append(place)
            other.append(flipped)
        if absent or different:
            parts = [f"none of {shown(absent)}"] if absent else []
            parts += [f"other alleles of {shown(different)}"] if different else []
            raise InputError(
                f"{self.name} must have the variants and alleles that every silo agreed on, got "
                f"{' and '.join(parts)}; leave them out of the list of variants, or flip their strand"
            )
        if extra == "refuse" and len(found) < len(places):
            surplus = [self.ids[place] for place in keep if place not in set(found)]
            raise InputError(
                "{source} must have only the variants every silo agreed on, got also {surplus}; remove "
                "them, or leave them out with {without_extra}",
                source=self.name,
                surplus=shown(surplus),
            )
        return replace(self, columns=columns, keep=tuple(found), other=tuple(other))

    def blocks(self, max_rows: int) -> Iterator[Matrix]:
        """Yield counts of alleles, a row for each sample; by columns, as the file has them."""
        require_block_size(max_rows)
        count = len(self.samples)
        second = np.array(self.other)
        for start in range(0, count, max_rows):
            cells = self._counts(start, min(start + max_rows, count))
            np.subtract(2.0, cells, out=cells, where=second[:, np.newaxis])
            self._fill(cells, start)
            yield cells.T
        require_shape(self.name, count, self.n_features)

    def _counts(self, start: int, stop: int) -> Matrix:
        """Return how often samples have each kept variant's first allele; NaN where missing."""
        stored = np.memmap(self.path, dtype=np.uint8, mode="r", offset=len(_MAGIC))
        variants = stored.reshape(self.width, -(-len(self.samples) // 4))
        first, last = start // 4, -(-stop // 4)
        keep = None if self.keep is None else np.array(self.keep)
        some = variants[:, first:last] if keep is None else variants[keep, first:last]
        cells = _COUNTS[some].reshape(self.n_features, -1)
        return np.ascontiguousarray(cells[:, start - 4 * first : stop - 4 * first])

    def _fill(self, cells: Matrix, first_row: int) -> None:
        """Put what was agreed on in the place of missing genotypes."""
        columns, rows = np.nonzero(np.isnan(cells))
        if not columns.size:
            return
        if self.filling is None:
            assert self.columns is not None
            raise InputError(
                f"every genotype of {self.name} must be known, or its allele have a public frequency p, "
                f"for 2p then stands for it, got none for {self.columns[columns[0]]!r} of sample "
                f"{first_row + int(rows[0]) + 1}; give frequencies, or public offsets of 2p"
            )
        cells[columns, rows] = self.filling[columns]


def _is_second(allele: str, alleles: tuple[str, str]) -> bool | None:
    """Return whether an allele is the second of two; None where it is neither."""
    if allele in alleles:
        return allele == alleles[1]
    if UNKNOWN in alleles:
        return alleles[1] == UNKNOWN
    return None


def fill_missing(source: RowSource, values: NDArray[np.float64] | None) -> RowSource:
    """Return a source of genotypes in which these values, 2p, stand for missing ones; others as is."""
    if values is None or not isinstance(source, PlinkSource):
        return source
    return replace(source, filling=np.asarray(values, dtype=np.float64))


def plink_source(path: Path, name: str) -> PlinkSource:
    """Return the source of a .bed file, whose .bim and .fam stand beside it."""
    variants = _lines(path.with_suffix(".bim"), 6, name)
    samples = tuple(words[1] for words in _lines(path.with_suffix(".fam"), 6, name))
    with path.open("rb") as stream:
        magic = stream.read(len(_MAGIC))
    expected = len(_MAGIC) + len(variants) * -(-len(samples) // 4)
    if magic != _MAGIC or os.path.getsize(path) != expected:  # noqa: PTH202
        raise InputError(
            f"{name} must be a .bed file of PLINK 1 with {len(variants)} variants of {len(samples)} "
            "samples, variant by variant, got other bytes; write it again with `plink2 --make-bed`"
        )
    return PlinkSource(
        **genotypes_of(
            path,
            name,
            samples=samples,
            ids=[f"{w[0]}:{w[3]}" if w[1] == "." else w[1] for w in variants],
            alleles=[(words[4], words[5]) for words in variants],
        )
    )


def genotypes_of(
    path: Path, name: str, *, samples: Sequence[str], ids: Sequence[str], alleles: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return the parts of a source of genotypes; of each variant the first allele's counts are stored."""
    require_distinct(f"variants of {name}", tuple(ids))
    counted = [min(each, key=lambda allele: (allele == UNKNOWN, allele)) for each in alleles]
    return {
        "name": name,
        "width": len(ids),
        "n_rows": len(samples),
        "columns": tuple(f"{one}_{allele}" for one, allele in zip(ids, counted, strict=True)),
        "path": path,
        "samples": tuple(samples),
        "alleles": tuple(alleles),
        "ids": tuple(ids),
        "other": tuple(
            allele == both[1] and both[0] != both[1] for allele, both in zip(counted, alleles, strict=True)
        ),
    }


def _lines(path: Path, width: int, name: str) -> list[list[str]]:
    """Return the words of every line of a .bim or .fam file."""
    lines = words_of_lines(path, name)
    if not lines or any(len(words) != width for words in lines):
        raise InputError(
            f"{path} must have {width} words in every line, got another number; write it again with "
            "`plink2 --make-bed`"
        )
    return lines


def words_of_lines(path: Path, name: str) -> list[list[str]]:
    """Return the words of every line of a file that stands beside genotypes."""
    try:
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"{name} must have {path.name} beside it, got none that can be read; put the three files of "
            "PLINK together"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantList:
    """A public list of variants, such as an LD-pruned one."""

    ids: tuple[str, ...]
    alleles: tuple[str, ...] | None = None
    frequencies: NDArray[np.float64] | None = None

    def columns(self, source: Any) -> tuple[str, ...]:
        """Return the columns of the listed variants; where no allele is listed, as a file has them."""
        if self.alleles is not None:
            return tuple(f"{one}_{allele}" for one, allele in zip(self.ids, self.alleles, strict=True))
        if not isinstance(source, PlinkSource):
            raise InputError(
                f"a list of variants must go with .bed or .pgen files, got {source.name}; leave it out"
            )
        assert source.columns is not None
        known = dict(zip(source.ids, source.columns, strict=True))
        absent = [one for one in self.ids if one not in known]
        if absent:
            raise InputError(
                f"{source.name} must have the listed variants, got none of {shown(absent)}; leave them "
                "out of the list"
            )
        return tuple(known[one] for one in self.ids)

    @property
    def offset(self) -> NDArray[np.float64] | None:
        """2p, what a genotype is expected to be; None where no frequency is listed."""
        return None if self.frequencies is None else 2.0 * self.frequencies

    @property
    def scale(self) -> NDArray[np.float64] | None:
        """√(2p(1 − p)), its standard deviation in equilibrium; None where no frequency is listed."""
        p = self.frequencies
        return None if p is None else np.sqrt(2.0 * p * (1.0 - p))


def read_variants(path: Path) -> VariantList:
    """Return the variants in a file: ids, a line each (``.prune.in``), or PLINK 2's ``.afreq``."""
    try:
        lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"{path} must be a list of variants that can be read, got none; check the path"
        ) from None
    if not lines:
        raise InputError(f"{path} must list one variant at least, got none; check the file")
    if not lines[0][0].startswith("#"):
        return VariantList(ids=_distinct(path, [words[0] for words in lines]))
    head = [word.lstrip("#") for word in lines[0]]
    try:
        places = [head.index(name) for name in ("ID", "ALT", "ALT_FREQS")]
        cells = [[words[place] for place in places] for words in lines[1:]]
        frequencies = np.array([float(words[2]) for words in cells])
    except (ValueError, IndexError):
        raise InputError(
            f"{path} must have ids, a line each, or the columns ID, ALT and ALT_FREQS of "
            "`plink2 --freq`, got others; write it so"
        ) from None
    ids = _distinct(path, [words[0] for words in cells])
    fixed = [one for one, p in zip(ids, frequencies, strict=True) if not 0 < p < 1]
    if fixed:
        raise InputError(
            f"every frequency of {path} must lie between 0 and 1, got another for {shown(fixed)}; leave "
            "variants out that do not vary"
        )
    return VariantList(ids=ids, alleles=tuple(w[1] for w in cells), frequencies=frequencies)


def _distinct(path: Path, ids: Sequence[str]) -> tuple[str, ...]:
    require_distinct(f"variants of {path}", tuple(ids))
    return tuple(ids)
