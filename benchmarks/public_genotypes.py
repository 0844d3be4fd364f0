"""Public genotypes from files of PLINK to a picture, as three silos would: an exact fit.

The example data of the package bed-reader (500 people, 10,000 variants), which its wheel holds:
`pip download --no-deps bed-reader`, and `--wheel FILE`. People are shared out to three silos; one of them
has every second variant's alleles the other way round. Frequencies are those of all people, which a real
study takes from a public panel.
"""

import argparse
import os
import re
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from numpy.typing import NDArray

from benchmarks.common import parser, report
from fedpower.cli import main as fedpower
from fedpower.linalg import sin_theta
from fedpower.report import read_result
from fedpower.rows.plink import PlinkSource, fill_missing, plink_source

Array = NDArray[np.float64]

DATA = "bed_reader/tests/data/toydata.5chrom"
SILOS = ("north", "south", "east")
RANK = 2
CODES = np.array([3, 2, 0, 1], dtype=np.uint8)
"""How 0, 1, 2 first alleles and a missing genotype are stored."""


def main() -> None:
    """Run the whole of it in a scratch folder."""
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        picture = None if options.picture is None else options.picture.resolve()
        found = example(Path(scratch), options.wheel.resolve(), picture)
    report(
        options,
        name="public_genotypes",
        settings={"data": "toydata.5chrom of bed-reader", "silos": len(SILOS), "k": RANK},
        columns=["people", "variants", "sin θ to the pooled PCA", "rounds", "s of the fit", "outliers"],
        rows=[
            [
                f"{found['people']}",
                f"{found['variants']:,}",
                f"{found['error']:.1e}",
                f"{found['rounds']}",
                f"{found['seconds']:.1f}",
                f"{found['outliers']}",
            ]
        ],
        raw=found,
        notes=[
            "`fedpower fit --variants all.afreq --epsilon inf`, then `transform` at each silo with "
            "`--outliers 6`; `--scores-epsilon inf` draws where people lie in the report. NOT private."
        ],
    )


def example(folder: Path, wheel: Path, picture: Path | None = None) -> dict[str, Any]:
    """Return how far the fit is from the pooled PCA, and what it took; leave a picture of all people."""
    for ending in ("bed", "bim", "fam"):
        with zipfile.ZipFile(wheel) as archive, archive.open(f"{DATA}.{ending}") as stored:
            (folder / f"all.{ending}").write_bytes(stored.read())
    source = plink_source(folder / "all.bed", "all people")
    counts = np.vstack(list(fill_missing(source, np.full(source.n_features, -1.0)).blocks(64)))
    known = np.where(counts < 0, np.nan, counts)
    p = np.nanmean(known, axis=0) / 2
    listed = np.flatnonzero((p > 0.01) & (p < 0.99))
    _write_frequencies(folder / "all.afreq", source, p, listed)
    for place, part in enumerate(np.array_split(np.arange(len(counts)), len(SILOS))):
        _write_bed(folder / f"{SILOS[place]}.bed", source, counts, part, turned=place == 2)
    before = Path.cwd()
    os.chdir(folder)
    try:
        return _ran(known[:, listed], p[listed], picture)
    finally:
        os.chdir(before)


def _ran(known: Array, p: Array, picture: Path | None) -> dict[str, Any]:
    files = [f"{name}.bed" for name in SILOS]
    started = time.perf_counter()
    _fedpower(
        "fit", *files, "-k", str(RANK), "--variants", "all.afreq", "--epsilon", "inf",
        "--scores-epsilon", "inf", "-o", "result",
    )  # fmt: skip
    seconds = time.perf_counter() - started
    result = read_result("result")
    rows = (np.where(np.isnan(known), 2 * p, known) - 2 * p) / np.sqrt(2 * p * (1 - p))
    rows -= rows.mean(axis=0)
    pooled = np.linalg.svd(rows, full_matrices=False)[2][:RANK]
    outliers = 0
    for name in SILOS:
        told = _fedpower("transform", "result", f"{name}.bed", "--outliers", "6")
        outliers += sum(line.endswith(",1.0") for line in told.splitlines())
    _fedpower("transform", "result", "all.bed", "-o", "all.csv", "--plot", "all.svg")
    counts = result.score_counts
    assert counts is not None
    if picture is not None:
        picture.write_text(_of_report(Path("result/report.html").read_text(encoding="utf-8")))
    return {
        "counted": float(counts.pooled.sum()),
        "people": len(known),
        "variants": len(p),
        "error": sin_theta(result.components.T, pooled.T),
        "rounds": len(result.run["rounds"]),
        "seconds": seconds,
        "outliers": outliers,
    }


def _of_report(page: str) -> str:
    """Return the map of scores in a report as a picture of its own, in the colours of print."""
    section = page[page.index('<section id="scores"') :]
    drawn = section[section.index("<svg") : section.index("</svg>") + len("</svg>")]
    side = int(re.search(r'height="(\d+)"', drawn)[1])  # type: ignore[index]
    inner = re.sub(r"<svg[^>]*>", f'<svg x="56" y="16" width="{side}" height="{side}" '
                   'overflow="visible">', drawn, count=1)  # fmt: skip
    style = (
        "text{fill:#444b52;font:12px sans-serif}.bar.plus{fill:#0a5a9c}"
        ".bar.rest{fill:#e9ebee;stroke:#57606a;stroke-width:.75}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side + 80} {side + 48}" role="img">'
        f'<style>{style}</style><rect width="100%" height="100%" fill="#fff"/>{inner}</svg>\n'
    )


def _fedpower(*words: str) -> str:
    done = CliRunner().invoke(fedpower, words)
    if done.exit_code:
        raise SystemExit(done.output)
    return done.stdout


def _write_frequencies(path: Path, source: PlinkSource, p: Array, listed: Any) -> None:
    assert source.columns is not None
    lines = ["#CHROM\tID\tREF\tALT\tALT_FREQS\tOBS_CT"]
    for place in listed:
        counted = source.columns[place].rpartition("_")[2]
        other = next(each for each in source.alleles[place] if each != counted)
        lines.append(f"1\t{source.ids[place]}\t{other}\t{counted}\t{float(p[place])!r}\t1000")
    path.write_text("\n".join(lines) + "\n")


def _write_bed(path: Path, source: PlinkSource, counts: Array, part: Any, *, turned: bool) -> None:
    """Write some people's files; with alleles of every second variant the other way round."""
    assert source.columns is not None
    lines, cells = [], counts[part].T.astype(int)
    for place, (one, both) in enumerate(zip(source.ids, source.alleles, strict=True)):
        counted = source.columns[place].rpartition("_")[2]
        other = both[1] if both[0] == counted else both[0]
        pair = (counted, other)
        if turned and place % 2:
            cells[place] = np.where(cells[place] < 0, -1, 2 - cells[place])
            pair = (other, counted)
        lines.append(f"1\t{one}\t0\t{place + 1}\t{pair[0]}\t{pair[1]}\n")
    codes = CODES[cells]
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 4))).reshape(len(codes), -1, 4)
    packed = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6
    path.write_bytes(b"\x6c\x1b\x01" + packed.astype(np.uint8).tobytes())
    path.with_suffix(".bim").write_text("".join(lines))
    people = "".join(f"0 {source.samples[person]} 0 0 0 -9\n" for person in part)
    path.with_suffix(".fam").write_text(people)


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--wheel", type=Path, required=True, help="the wheel of bed-reader")
    options.add_argument("--picture", type=Path, help="where the picture goes")
    return options.parse_args()


if __name__ == "__main__":
    main()
