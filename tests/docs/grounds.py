"""The files that pages take for granted: what a reader has and a page does not make."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fedpower import FedPCA
from fedpower.cli import main as fedpower
from fedpower.protocol.secure import Identity
from genotypes import people, write_bed

HEART = ("age", "bmi", "sbp", "dbp", "hdl")
"""Columns of a made-up study; the pages say nothing about them but their names."""

ANALYSES = (
    "adjust-for-covariates", "correlations", "factor-analysis", "monitor-a-process", "regression",
    "test-means",
)  # fmt: skip
"""Pages that begin with the result of a fit."""

SURVEY = ("quickstart", "tables", "choose-epsilon", "read-a-report")
"""Pages whose reader works in a copy of examples/data."""

SILO_FILE = """
silo = "{name}"
[data]
path = "{name}.csv"
[ledger]
path = "{name}.ledger"
epsilon = 3.0
delta = 1e-6
"""


def three_hospitals(folder: Path) -> None:
    """Write north, south and east in the formats that pages speak of, and each one's own file."""
    for place, name in enumerate(("north", "south", "east")):
        table = _rows(place)
        pa.csv.write_csv(table, folder / f"{name}.csv")
        pa.parquet.write_table(table, folder / f"{name}.parquet")
        (folder / f"{name}.toml").write_text(SILO_FILE.format(name=name))
    for name, value in (("usual", 0.5), ("units", 2.0)):
        lines = "".join(f"{column},{value}\n" for column in HEART)
        (folder / f"{name}.csv").write_text(lines)


def survey(folder: Path) -> None:
    """Copy the three silos of the health survey and their code book."""
    shutil.copytree(Path(__file__).parents[2] / "examples" / "data", folder, dirs_exist_ok=True)


def clone(folder: Path) -> None:
    """Copy the survey to where a clone has it, and to where the README's reader goes."""
    survey(folder)
    survey(folder / "examples" / "data")


def analysed(folder: Path) -> None:
    """Copy the survey, and write the result that the quickstart gets from it."""
    survey(folder)
    silos = {name: folder / f"{name}.csv" for name in ("north", "south", "east")}
    FedPCA(3, epsilon=1.0, codebook=folder / "codebook.toml").fit_silos(silos).save(folder / "result")


def ward(folder: Path) -> None:
    three_hospitals(folder)
    with sqlite3.connect(folder / "ward.db") as database:
        database.execute(f"CREATE TABLE visits ({', '.join(f'{name} REAL' for name in HEART)})")
        rows = zip(*(column.to_pylist() for column in _rows(0).columns), strict=True)
        database.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?)", rows)


def inbox(folder: Path) -> None:
    """Write hospitals, a study of theirs, and the kit of north with its ledger."""
    three_hospitals(folder)
    study, own = folder / "study.toml", folder / "kits" / "north"
    words = ("--silos", "north,south,east", "--columns", ",".join(HEART), "-k", "2", "--epsilon", "1")
    for command in (
        ("study", "init", study, "--name", "heart-2026", *words),
        ("node", "ca-init", study, "-o", folder / "kits", "--with-keys"),
        ("ledger", "create", own / "north.ledger", "--epsilon", "3", "--delta", "1e-6"),
    ):
        fedpower([str(word) for word in command], standalone_mode=False)
    (own / "silo.toml").write_text('silo = "north"\n[data]\npath = "../../north.csv"\n')


def signed_hospitals(folder: Path) -> None:
    three_hospitals(folder)
    for name in ("south", "east"):
        Identity.new().save(folder / f"{name}.pem")


def partitioned(folder: Path) -> None:
    three_hospitals(folder)
    (folder / "north").mkdir()
    shutil.copy(folder / "north.parquet", folder / "north" / "part-0.parquet")


def visits(folder: Path) -> None:
    """Write hospitals whose patients come several times, in no order, and each one's own file."""
    for place, name in enumerate(("north", "south")):
        rng = np.random.default_rng(place)
        counts = np.minimum(rng.geometric(0.4, 500), 20)
        ids = rng.permutation(np.repeat(np.arange(500), counts))
        spread = [3.0, 2.0, 1.0, 0.7, 0.5]
        rows = (rng.standard_normal((500, 5))[ids] + rng.standard_normal((ids.size, 5))) * spread
        table = pa.table({column: rows[:, at] for at, column in enumerate(HEART)})
        table = table.append_column("patient_id", pa.array([f"{name[0].upper()}{each:04d}" for each in ids]))
        pa.csv.write_csv(table, folder / f"{name}.csv")


def genotyped(folder: Path) -> None:
    """Write three silos' files of PLINK, with some genotypes missing, and a public panel."""
    counts, p = people(120, 200)
    counts[::9, 5] = -1
    ids, alleles = [f"rs{place}" for place in range(200)], [("A", "G")] * 200
    for place, name in enumerate(("north", "south", "east")):
        part = counts[40 * place : 40 * (place + 1)]
        write_bed(folder / f"{name}.bed", part, alleles=alleles, ids=ids, first=40 * place)
    lines = [f"1\t{one}\tG\tA\t{q:.4f}\t1000" for one, q in zip(ids, p, strict=True)]
    head = "#CHROM\tID\tREF\tALT\tALT_FREQS\tOBS_CT"
    (folder / "panel.afreq").write_text("\n".join([head, *lines]) + "\n")


GROUNDS: dict[str, Callable[[Path], None]] = {
    "README.md": clone,
    "docs/index.md": survey,
    "docs/user/analyses/index.md": survey,
    **{f"docs/user/analyses/{name}.md": analysed for name in ANALYSES},
    "docs/user/data.md": ward,
    "docs/user/devices.md": partitioned,
    "docs/operator/approve.md": inbox,
    "docs/operator/federation.md": three_hospitals,
    "docs/operator/ledger.md": three_hospitals,
    **{f"docs/user/{name}.md": survey for name in SURVEY},
    "docs/user/persons.md": visits,
    "docs/user/genotypes.md": genotyped,
    "docs/user/result-folder.md": analysed,
    "docs/user/score-plots.md": three_hospitals,
    "docs/officer/secure-aggregation.md": signed_hospitals,
}
"""By page: what makes the files it takes for granted. Other pages begin in an empty folder."""


def _rows(seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((300, len(HEART))) * [3.0, 2.0, 1.0, 0.7, 0.5] + 0.5
    return pa.table({name: rows[:, place] for place, name in enumerate(HEART)})
