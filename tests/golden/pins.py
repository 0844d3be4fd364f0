"""What must stay as it is while the code is rebuilt: hashes, bytes, files, amounts and options.

Each pin is a function that makes its value anew and a JSON file beside this one that holds what it
was. ``make golden`` writes the files again; what a change did to them is then a diff to be read and
agreed on. Numbers that are as close as they should be keep their old digits, so nothing else changes.
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

import click
import numpy as np

from budgets import priced
from fedpower import FedPCA
from fedpower.cli import main
from fedpower.federation.study_file import read_study
from fedpower.privacy.accounting import delta_of, epsilon_of, mu_of
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise
from fedpower.protocol import messages as wire
from fedpower.protocol.messages import AskQuery, KeyGone, OpenSession, QueryAnswer, Session, SessionKey
from fedpower.report import write_result
from problems import spiked_rows, split

HERE = Path(__file__).parent
COLUMNS = ("age", "bmi", "sbp", "dbp", "hdl")
VARIES = (
    "versions", "started", "finished", "time", "sha256", "fedpower", "bytes_up", "bytes_down",
)  # fmt: skip
"""Keys whose values are another day's or another machine's (bytes count the last digits of numbers that
a message writes out); that they are there is pinned."""


def studies() -> dict[str, Any]:
    """Return the hashes of every study in ``studies``: its file's, its terms', its ledgers' name."""
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


def messages() -> dict[str, Any]:
    """Return the bytes of a message of every kind, a character a byte."""
    exact = np.array([[0.5, -1.0], [2.0, 0.25], [0.0, 1.5]])
    fine = exact / 3
    bodies = {
        "enrol": wire.Enrol(),
        "enrolment": wire.Enrolment(n_rows=12, n_features=3),
        "enrolment, version": wire.Enrolment(n_rows=12, n_features=3, data_version="2026-03"),
        "ask-mean": wire.AskMean(),
        "mean": wire.MeanRow(mean=fine[:, 0]),
        "mean, all": wire.MeanRow(mean=fine[:, 0], variances=np.abs(fine[:, 0])),
        "ask-steps": wire.AskSteps(basis=exact, n_local_steps=2),
        "ask-steps, all": wire.AskSteps(
            basis=fine, n_local_steps=1, center=exact[:, 0], shift=0.125, align="procrustes", pooled=exact
        ),
        "local-steps": wire.LocalSteps(product=exact),
        "local-steps, all": wire.LocalSteps(
            product=fine, basis=exact, total_variance=0.75, misalignment=0.5, made_for="run-1"
        ),
        "ask-moment": wire.AskMoment(),
        "moment": wire.PackedMoment(triangle=fine.ravel(), total_variance=1.5),
        "moment, all": wire.PackedMoment(
            triangle=exact.ravel(), total_variance=1.5, mean=fine[:, 1], made_for="run-1"
        ),
        "ask-factor": wire.AskFactor(),
        "factor": wire.Factor(factor=exact.T, total_variance=1.5),
        "factor, all": wire.Factor(factor=fine.T, total_variance=1.5, mean=exact[:, 0]),
        "open-session": OpenSession(attempt=1),
        "present": SessionKey(n_rows=12, key=bytes(range(32)), signature=bytes(range(64)), charged=0),
        "ask-query": AskQuery(index=1, label="product 1", public=b"a basis"),
        "ask-query, all": AskQuery(
            index=1,
            label="means",
            public=b"found before",
            session=Session(study="s", run="r", attempt=0, members=()),
        ),
        "query": QueryAnswer(words=np.array([0, 1, 2**64 - 1], dtype=np.uint64)),
        "query, all": QueryAnswer(words=np.array([0, 1, 2**64 - 1], dtype=np.uint64), charged=1),
        "key-gone": KeyGone(),
        "refusal": wire.Refusal(reason="nothing is left; ask for less"),
    }
    return {
        name: wire.encode(
            wire.Message(study="ab" * 32, run="run-2", round=3, silo="north", body=body)
        ).decode("latin-1")
        for name, body in bodies.items()
    }


FITS: dict[str, dict[str, Any]] = {
    "exact": {"epsilon": math.inf},
    "moment": {"epsilon": 1.0, "delta": 1e-6, "row_norm": 12.0},
    "step": {
        "epsilon": 2.0, "delta": 1e-6, "row_norm": 12.0, "noise": "step", "center": False,
        "standardize": False,
        "n_steps": 4, "local_steps": 2,
    },
    "prepared": {"epsilon": 4.0, "delta": 1e-6, "ranges": (-50.0, 50.0)},
    "krylov": {"epsilon": math.inf, "solver": "krylov", "center": False, "normalize": True},
}  # fmt: skip


def results() -> dict[str, Any]:
    """Return what is in the result folder of a small fit of each kind, its noise from a seed."""
    return {name: _result(**parameters) for name, parameters in FITS.items()}


def _result(**parameters: Any) -> dict[str, Any]:
    rows = spiked_rows(900, len(COLUMNS), rank=2, seed=7) + 1.0
    silos = dict(zip(("north", "south", "east"), split(rows, [400, 300, 200]), strict=True))
    source = SeededNoiseForExperiments(11)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(SystemNoise, "words", lambda _, n: source.words(n)),
    ):
        model = FedPCA(2, random_state=0, n_jobs=1, **parameters).fit_silos(silos)
        write_result(Path(folder) / "result", model)
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
    """Return a ledger's statement after releases of two studies and another cap."""
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
    """Return what releases cost and how much noise they take, over the range of use."""
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
    for mode in ("moment", "step", "paper"):
        budget = priced(mode, n_steps=6, center=True)
        reported[f"{mode} of 20 columns"] = {
            "mu": budget.study_mu,
            "slack_delta": budget.slack_delta,
            "std": budget.std(1000),
        }
    return reported


def options() -> dict[str, Any]:
    """Return the arguments and options of every command of the command line."""
    return _commands("fedpower", main, click.Context(main, info_name="fedpower"))


def _commands(name: str, command: click.Command, context: click.Context) -> dict[str, Any]:
    words = []
    for each in command.get_params(context):
        if isinstance(each, click.Argument):
            words.append(each.human_readable_name)
        else:
            # How help is asked for depends on which command was made first.
            reported = [word for word in (*each.opts, *each.secondary_opts) if word != "-h"]
            words.append(" ".join(reported))
    found = {name: sorted(words)}
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            inner = command.get_command(context, part)
            assert inner is not None, f"{name} {part} is listed and not there"
            found |= _commands(f"{name} {part}", inner, click.Context(inner, info_name=part, parent=context))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One pinned value: how it is made, and how far its numbers may be from what they were."""

    made: Callable[[], dict[str, Any]]
    relative: float = 0.0
    absolute: float = 0.0

    def text(self, was: Any) -> str:
        """Return the value as the file's text, numbers close to ``was`` with their old digits."""
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
    "messages": Pin(made=messages),
    "results": Pin(made=results, **BLAS),
    "ledger": Pin(made=ledger, relative=1e-9),
    "amounts": Pin(made=amounts, relative=1e-9),
    "options": Pin(made=options),
}


def as_text(value: Any) -> str:
    """Return a pinned value as its file holds it: sorted, and a line for whatever can change."""
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def pinned(name: str) -> Any:
    """Return what was pinned; nothing where there is no file yet."""
    path = HERE / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def update() -> None:
    """Write every pin anew and say which have changed."""
    for name, pin in PINS.items():
        path, text = HERE / f"{name}.json", pin.text(pinned(name))
        changed = not path.exists() or path.read_text(encoding="utf-8") != text
        path.write_text(text, encoding="utf-8")
        print(f"{name}: {'changed, read its diff' if changed else 'as it was'}", file=sys.stderr)


if __name__ == "__main__":
    update()
