"""Files of PLINK 1 that tests write by themselves."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
"""Samples by variants; -1 is missing."""

_CODES = {2: 0, -1: 1, 1: 2, 0: 3}


def write_bed(
    path: Path, counts: Counts, *, alleles: Sequence[tuple[str, str]], ids: Sequence[str], first: int = 0
) -> Path:
    """Write counts of each variant's first allele as .bed, .bim and .fam; return the .bed."""
    n, d = counts.shape
    packed = np.zeros((d, -(-n // 4)), dtype=np.uint8)
    for sample in range(n):
        for variant in range(d):
            code = _CODES[int(counts[sample, variant])]
            packed[variant, sample // 4] |= code << 2 * (sample % 4)
    path.write_bytes(b"\x6c\x1b\x01" + packed.tobytes())
    path.with_suffix(".bim").write_text(
        "".join(
            f"1\t{one}\t0\t{place + 1}\t{a}\t{b}\n"
            for place, (one, (a, b)) in enumerate(zip(ids, alleles, strict=True))
        )
    )
    path.with_suffix(".fam").write_text("".join(f"F{first + s} P{first + s} 0 0 0 -9\n" for s in range(n)))
    return path


def people(n: int, d: int, seed: int = 0) -> tuple[Counts, NDArray[np.float64]]:
    """Return counts of people of two peoples, and the frequencies of both together."""
    rng = np.random.default_rng(seed)
    frequencies = rng.uniform(0.2, 0.8, (2, d))
    return rng.binomial(2, frequencies[rng.integers(2, size=n)]), frequencies.mean(axis=0)
