"""What must stay as it is from one version to the next: hashes of studies, result folders and amounts.

Each pin is a function that computes its value, and a JSON file with what it was. ``make golden`` writes the
files again: read the diff. Numbers within the tolerance keep their old digits.
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.fits import fed_pca
from budgets import priced
from fedpower.federation.study_file import read_study
from fedpower.privacy.accounting import delta_of, epsilon_of, mu_of
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise
from problems import spiked_rows, split

HERE = Path(__file__).parent
COLUMNS = ("age", "bmi", "sbp", "dbp", "hdl")
VARIES = (
    "versions", "started", "finished", "time", "sha256", "fedpower", "bytes_up",
    "bytes_down",
)  # fmt: skip
"""Keys whose values are another day's or another machine's (bytes count the last digits of numbers that
a message writes out); that they are there is pinned."""


def studies() -> dict[str, Any]:
    found = {}
    for path in sorted((HERE / "studies").glob("*.toml")):
        study = read_study(path)
        terms = study.terms()[0]
        found[path.stem] = {
            "agreement": study.digest,
            "terms": terms.digest,
            "ledger_name": terms.ledger_name,
        }
    return found


FITS: dict[str, dict[str, Any]] = {
    "exact": {"epsilon": math.inf},
    "covariance": {"epsilon": 1.0, "delta": 1e-6, "row_norm": 12.0},
    "step": {
        "epsilon": 2.0, "delta": 1e-6, "row_norm": 12.0, "noise": "step", "center": False,
        "standardize": False,
        "n_steps": 4, "local_steps": 2,
    },
    "prepared": {"epsilon": 4.0, "delta": 1e-6, "ranges": (-50.0, 50.0)},
    "krylov": {"epsilon": math.inf, "solver": "krylov", "center": False, "normalize": True},
}  # fmt: skip


def results() -> dict[str, Any]:
    return {name: _result(**parameters) for name, parameters in FITS.items()}


def _result(**parameters: Any) -> dict[str, Any]:
    rows = spiked_rows(900, len(COLUMNS), rank=2, seed=7) + 1.0
    silos = dict(zip(("north", "south", "east"), split(rows, [400, 300, 200]), strict=True))
    source = SeededNoiseForExperiments(11)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(SystemNoise, "words", lambda _, n: source.words(n)),
    ):
        model = fed_pca(2, random_state=0, n_jobs=1, **parameters).fit_silos(silos)
        model.save(Path(folder) / "result")
        place = Path(folder) / "result"
        with np.load(place / "components.npz") as stored:
            arrays = {
                name: {
                    "type": stored[name].dtype.kind,
                    "shape": list(stored[name].shape),
                    "values": stored[name].tolist(),
                }
                for name in stored.files
            }
        return {
            "files": sorted(path.name for path in place.iterdir()),
            "components.npz": arrays,
            "components.csv": _first_line(place / "components.csv"),
            "eigenvalues.csv": _first_line(place / "eigenvalues.csv"),
            "run.json": json.loads((place / "run.json").read_text(encoding="utf-8")),
            "privacy.txt": (place / "privacy.txt").read_text(encoding="utf-8").splitlines(),
        }


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[0]


def ledger() -> dict[str, Any]:
    with Ledger.in_memory(2.0, 1e-6, silo="north") as held:
        for number, mu in enumerate((0.1, 0.1, 0.2)):
            held.release(
                key=f"key-{number}",
                purpose="a product",
                study=f"study-{number // 2}",
                mu=mu,
                slack_delta=1e-12,
                payload=lambda: b"bytes",
            )
        held.set_cap(3.0, 1e-6, reason="a second study")
        return held.statement()


def amounts() -> dict[str, Any]:
    reported: dict[str, Any] = {}
    for epsilon in (1e-3, 0.1, 0.5, 1.0, 3.0, 10.0, 60.0):
        for delta in (1e-12, 1e-9, 1e-6, 1e-4):
            mu = mu_of(epsilon, delta)
            reported[f"epsilon={epsilon:g} delta={delta:g}"] = {
                "mu": mu,
                "delta": delta_of(mu, epsilon),
                "epsilon of half of mu": epsilon_of(mu / 2, delta),
                "epsilon of twice mu": epsilon_of(2 * mu, delta),
            }
    for mode in ("covariance", "step", "paper"):
        budget = priced(mode, n_steps=6, center=True)
        reported[f"{mode} of 20 columns"] = {
            "mu": budget.study_mu,
            "slack_delta": budget.slack_delta,
            "std": budget.std(1000),
        }
    return reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    made: Callable[[], dict[str, Any]]
    relative: float = 0.0
    absolute: float = 0.0

    def text(self, was: Any) -> str:
        return as_text(self._settled(self.made(), was))

    def _settled(self, value: Any, was: Any) -> Any:
        if isinstance(value, dict):
            known = was if isinstance(was, dict) else {}
            return {
                str(key): "…" if key in VARIES else self._settled(each, known.get(str(key)))
                for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            known = was if isinstance(was, list) and len(was) == len(value) else [None] * len(value)
            return [self._settled(each, old) for each, old in zip(value, known, strict=True)]
        if isinstance(value, float) and isinstance(was, int | float):
            close = math.isclose(value, was, rel_tol=self.relative, abs_tol=self.absolute)
            return was if close else value
        return value


BLAS = {"relative": 1e-7, "absolute": 1e-9}
"""Sums in another order, and noise scaled by a level that was calibrated to 1e-9."""

PINS = {
    "studies": Pin(made=studies),
    "results": Pin(made=results, **BLAS),
    "ledger": Pin(made=ledger, relative=1e-9),
    "amounts": Pin(made=amounts, relative=1e-9),
}


def as_text(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def pinned(name: str) -> Any:
    path = HERE / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def update() -> None:
    for name, pin in PINS.items():
        path, text = HERE / f"{name}.json", pin.text(pinned(name))
        changed = not path.exists() or path.read_text(encoding="utf-8") != text
        path.write_text(text, encoding="utf-8")
        print(f"{name}: {'changed, read its diff' if changed else 'as it was'}", file=sys.stderr)


if __name__ == "__main__":
    update()
