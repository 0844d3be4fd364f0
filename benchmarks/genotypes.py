"""Public genotypes from files of PLINK to a picture, as three silos would: an exact fit.

The example data of the package bed-reader (500 people, 10,000 variants), which its wheel holds. People are
shared out to three silos; one of them has every second variant's alleles swapped. Frequencies are those of
all people, which a real study takes from a public panel.
"""

import contextlib
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from benchmarks.data_sets import genotypes
from benchmarks.runner import MissingError, Record, Table, case, scratch
from fedpower import load
from fedpower.cli import main as fedpower
from fedpower.linalg import sin_theta

DATA = "bed_reader/tests/data/toydata.5chrom"
SILOS = ("north", "south", "east")
RANK = 2
CODES = np.array([3, 2, 0, 1], dtype=np.uint8)
"""How 0, 1, 2 first alleles and a missing genotype are stored."""


@case("public_genotypes", quick={"people": 60, "variants": 80})
def public_genotypes(
    *, wheel: Path | None = None, picture: Path | None = None, people: int = 0, variants: int = 0
) -> Table:
    """Fit genotypes from PLINK files exactly by three silos (wheel=FILE of bed-reader).

    All runs in a scratch folder; simulated ``people`` replace the wheel in tests.
    """
    if wheel is None and not people:
        raise MissingError("wheel=FILE must name bed-reader's (pip download --no-deps bed-reader)")
    counts = genotypes(people, variants, drifts=(0.2, 0.05)).T if people else _read(Path(str(wheel)))
    shown = None if picture is None else picture.resolve()
    with scratch() as folder, contextlib.chdir(folder):
        found = _ran(counts, shown)
    return Table(
        columns=["people", "variants", "sin θ to the pooled PCA", "rounds", "s of the fit", "outliers"],
        rows=[
            [
                found["people"], f"{found['variants']:,}", f"{found['error']:.1e}", found["rounds"],
                f"{found['seconds']:.1f}", found["outliers"],
            ]
        ],
        measured=found,
        notes=[
            "`fedpower fit --variants all.afreq --epsilon inf`, then `transform` at each silo with "
            "`--outliers 6`; `--scores-epsilon inf` draws where people lie in the report. NOT private."
        ],
        settings={"data": "toydata.5chrom of bed-reader", "silos": len(SILOS), "k": RANK},
    )  # fmt: skip


def _read(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        people = archive.read(f"{DATA}.fam").decode().count("\n")
        packed = np.frombuffer(archive.read(f"{DATA}.bed"), dtype=np.uint8, offset=3).reshape(
            -1, -(-people // 4)
        )
    codes = (packed[:, :, None] >> np.array([0, 2, 4, 6], dtype=np.uint8)) & 3
    return np.array([2, -1, 1, 0])[codes.reshape(len(packed), -1)[:, :people]]


def _ran(counts: Any, picture: Path | None) -> Record:
    known = np.where(counts < 0, np.nan, counts.astype(float)).T
    p = np.nanmean(known, axis=0) / 2
    listed = np.flatnonzero((p > 0.01) & (p < 0.99))
    lines = [f"1\tv{place}\tC\tA\t{float(p[place])!r}\t1000\n" for place in listed]
    Path("all.afreq").write_text(
        "#CHROM\tID\tREF\tALT\tALT_FREQS\tOBS_CT\n" + "".join(lines), encoding="utf-8"
    )
    everybody = np.arange(len(known))
    for place, part in enumerate(np.array_split(everybody, len(SILOS))):
        _write(Path(f"{SILOS[place]}.bed"), counts, part, turned=place == 2)
    _write(Path("all.bed"), counts, everybody, turned=False)
    files = [f"{name}.bed" for name in SILOS]
    words = f"-k {RANK} --variants all.afreq --epsilon inf --scores-epsilon inf -o result".split()
    began = time.perf_counter()
    _fedpower("fit", *files, *words)
    seconds = time.perf_counter() - began
    result = load("result")
    p, known = p[listed], known[:, listed]
    rows = (np.where(np.isnan(known), 2 * p, known) - 2 * p) / np.sqrt(2 * p * (1 - p))
    pooled = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:RANK]
    outliers = sum(
        line.endswith(",1.0")
        for name in files
        for line in _fedpower("transform", "result", name, "--outliers", "6").splitlines()
    )
    _fedpower("transform", "result", "all.bed", "-o", "all.csv", "--plot", "all.svg")
    if picture is not None:
        picture.write_text(
            _of_report(Path("result/report.html").read_text(encoding="utf-8")), encoding="utf-8"
        )
    return {
        "people": len(known),
        "variants": len(p),
        "error": sin_theta(result.components.T, pooled.T),
        "rounds": len(result.run["rounds"]),
        "seconds": seconds,
        "outliers": outliers,
    }


def _of_report(page: str) -> str:
    section = page[page.index('<section id="scores"') :]
    drawn = section[section.index("<svg") : section.index("</svg>") + len("</svg>")]
    side = int(re.search(r'height="(\d+)"', drawn)[1])  # type: ignore[index]
    frame = f'<svg x="56" y="16" width="{side}" height="{side}" overflow="visible">'
    style = (
        "text{fill:#444b52;font:12px sans-serif}.bar.plus{fill:#0a5a9c}"
        ".bar.rest{fill:#e9ebee;stroke:#57606a;stroke-width:.75}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side + 80} {side + 48}" role="img">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>'
        f"{re.sub(r'<svg[^>]*>', frame, drawn, count=1)}</svg>\n"
    )


def _fedpower(*words: str) -> str:
    done = CliRunner().invoke(fedpower, words)
    if done.exit_code:
        raise RuntimeError(done.output)
    return done.stdout


def _write(path: Path, counts: Any, part: Any, *, turned: bool) -> None:
    cells, lines = counts[:, part].astype(int), []
    for place in range(len(cells)):
        swapped = turned and place % 2
        if swapped:
            cells[place] = np.where(cells[place] < 0, -1, 2 - cells[place])
        pair = "C\tA" if swapped else "A\tC"
        lines.append(f"1\tv{place}\t0\t{place + 1}\t{pair}\n")
    codes = CODES[cells]
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 4))).reshape(len(codes), -1, 4)
    packed = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6
    path.write_bytes(b"\x6c\x1b\x01" + packed.astype(np.uint8).tobytes())
    path.with_suffix(".bim").write_text("".join(lines), encoding="utf-8")
    path.with_suffix(".fam").write_text(
        "".join(f"0 p{person} 0 0 0 -9\n" for person in part), encoding="utf-8"
    )
