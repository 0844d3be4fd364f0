"""Genotypes as PLINK 2 stores them: ``.pgen`` with its ``.pvar`` and ``.psam``, read by Pgenlib."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.errors import InputError, installing
from fedpower.rows.plink import UNKNOWN, PlinkSource, genotypes_of, words_of_lines
from fedpower.rows.source import Matrix


@dataclass(frozen=True, kw_only=True, eq=False)
class PgenSource(PlinkSource):
    """The samples of a .pgen file; the second allele of its .pvar, ALT, is the first here."""

    @property
    def beside(self) -> tuple[Path, ...]:
        """The files that say what the variants and samples are."""
        return self.path.with_suffix(".pvar"), self.path.with_suffix(".psam")

    def _counts(self, start: int, stop: int) -> Matrix:
        """Return how often samples have each kept variant's ALT; NaN where missing."""
        keep = np.arange(self.width) if self.keep is None else np.array(self.keep)
        calls = np.empty((keep.size, stop - start), dtype=np.int8)
        with _reader(self.path, self.name, len(self.samples), self.width, (start, stop)) as reader:
            reader.read_list(keep.astype(np.uint32), calls)
        cells = calls.astype(np.float64)
        cells[calls < 0] = np.nan
        return cells


def pgen_source(path: Path, name: str) -> PgenSource:
    """Return the source of a .pgen file, whose .pvar and .psam stand beside it."""
    variants = _table(path.with_suffix(".pvar"), name, "#CHROM", ("#CHROM", "POS", "ID", "REF", "ALT"))
    samples = _table(path.with_suffix(".psam"), name, "#", ("IID",))
    several = [words[2] for words in variants if "," in words[4]]
    if several:
        raise InputError(
            f"every variant of {name} must have two alleles, got more for {several[0]!r} and "
            f"{len(several) - 1} others; split them with `plink2 --make-pgen multiallelics=-`"
        )
    with _reader(path, name, len(samples), len(variants), (0, 1)):
        pass
    return PgenSource(
        **genotypes_of(
            path,
            name,
            samples=[words[0] for words in samples],
            ids=[f"{w[0]}:{w[1]}" if w[2] == "." else w[2] for w in variants],
            alleles=[(UNKNOWN if w[4] == "." else w[4], w[3]) for w in variants],
        )
    )


def _reader(path: Path, name: str, n_samples: int, n_variants: int, some: tuple[int, int]) -> Any:
    """Return Pgenlib's reader of some samples."""
    try:
        pgenlib = import_module("pgenlib")
    except ImportError:
        raise InputError(
            f"{name} must be read by Pgenlib, got none installed; run {installing('pgen')}, or write a "
            ".bed file with `plink2 --make-bed`"
        ) from None
    try:
        return pgenlib.PgenReader(
            str(path).encode(),
            raw_sample_ct=n_samples,
            variant_ct=n_variants,
            sample_subset=np.arange(*some, dtype=np.uint32),
        )
    except (RuntimeError, OSError):
        raise InputError(
            f"{name} must be a .pgen file of PLINK 2 with {n_variants} variants of {n_samples} samples, "
            "got other bytes; write it again with `plink2 --make-pgen`"
        ) from None


def _table(path: Path, name: str, begins: str, wanted: tuple[str, ...]) -> list[list[str]]:
    """Return the wanted columns of a .pvar or .psam file; lines of ## are left out."""
    lines = [words for words in words_of_lines(path, name) if not words[0].startswith("##")]
    head = [word if begins == "#CHROM" else word.lstrip("#") for word in lines[0]] if lines else []
    if len(lines) < 2 or not lines[0][0].startswith("#") or not set(wanted) <= set(head):
        raise InputError(
            f"{path} must have a line of names with {', '.join(wanted)}, and a line or more after it, "
            "got others; write it again with `plink2 --make-pgen`"
        )
    places = [head.index(each) for each in wanted]
    if any(len(words) <= max(places) for words in lines[1:]):
        raise InputError(
            f"{path} must have {', '.join(wanted)} in every line, got shorter ones; write it again with "
            "`plink2 --make-pgen`"
        )
    return [[words[place] for place in places] for words in lines[1:]]
