"""What public facts rule out is refused before a single row is read, and nothing is charged."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from benchmarks.fits import fed_pca
from budgets import ledgers_in
from fedpower import FedPCA
from fedpower.exceptions import FedpowerError
from fedpower.options import Iterative
from fedpower.values import Block

INF = float("inf")
PRIVATE = {"epsilon": 1.0, "row_norm": 9.0}
SECURE = {**PRIVATE, "aggregation": "secure"}
STEP = {**PRIVATE, "noise": "step"}
AUTO = {**PRIVATE, "n_components": "auto"}
MODES_WITHOUT_VARIANCES = (
    {"noise": "step"}, {"noise": "paper"}, {"noise": "clipped"}, {"solver": "krylov"}, {"n_steps": 3},
)  # fmt: skip
CLIPPED = {"epsilon": 4.0, "normalize": True, "noise": "clipped"}


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A source whose rows must not be read; its number of rows is known, or only a pass could tell."""

    name: str = "unread"
    columns: tuple[str, ...] | None = ("a", "b", "c")
    n_features: int = 3
    n_rows: int | None = 40
    sparse: bool = False
    density: float | None = 1.0

    def blocks(self, max_rows: int) -> Iterator[Block]:
        raise AssertionError("a row was read")

    def select(self, columns: tuple[str, ...], *, extra: Any = "refuse") -> "Unread":
        return replace(self, columns=columns)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n_components": 4}, "n_components must be a whole number from 1 to min"),
    ({"n_components": "noise"}, "n_components must be a whole number from 1 to min"),
    ({"n_components": 1.5}, "fraction between 0 and 1"),
    ({**PRIVATE, "epsilon": 1e-9}, "epsilon must be from 0.0001 to 60, or inf"),
    ({**PRIVATE, "epsilon": 30.0, "delta": 1e-30}, "delta must exceed"),
    ({"epsilon": float("nan")}, "epsilon must be a number above 0"),
    ({**PRIVATE, "delta": 2.0}, "delta must be a number between 0 and 1"),
    ({"epsilon": 1.0, "min_silos": 3}, "min_silos must be between 1 and the 2 silos"),
    ({"iteration_rank": 9}, "iteration_rank must be between n_components=2 and the number of columns 3,"),
    ({"solver": "upload", "local_steps": 2}, "local_steps must be left out with solver 'upload', got 2"),
    ({"center": [1.0, 2.0]}, "center must have one value per column"),
    ({"scale": [1.0, 0.0, 1.0]}, "scale must be positive in every column, got 0 for column 'b'"),
    ({**STEP, "n_components": 0.9}, r"n_components=0\.9 must be used with noise='covariance' or epsilon=inf"),
    ({**AUTO, "solver": "krylov"}, "solver='krylov' must be left out because n_components='auto' depends"),
    ({"n_components": "auto", "solver": "krylov"}, "solver='krylov' must be left out because n_components="),
    ({"n_components": "auto", "local_steps": 2}, "local_steps must be left out because n_components='auto'"),
    ({**STEP, "drift_correction": True}, "drift_correction must be used with"),
    ({"drift_correction": True, "n_participants": 2}, "drift-corrected steps must use every silo"),
    ({"drift_correction": True, "n_components": 0.5}, "must know the number of components, got 0.5"),
    ({**STEP, "solver": "upload", "standardize": False}, "solver='upload' must be used with"),
    ({"noise": "loud"}, "noise must be one of"),
    ({"schedule": "often"}, "schedule must be 'every', 'decaying', 'halving' or whole steps"),
    ({"schedule": [0, 1]}, r"schedule must be .* whole steps from 1, such as \[2, 4, 5\], got \[0, 1\]"),
    ({"n_steps": 0}, "n_steps must be a whole number"),
    ({"tol": -1}, "tol must be a number of at least 0 and below 1"),
    ({"deadline": 0}, "deadline must be a number above 0"),
    ({"row_norm": 0.0}, "row_norm must be a positive"),
    ({"row_norm": 1.0, "normalize": True}, "must not be given together"),
    ({**CLIPPED, "solver": "krylov"}, "solver must be left out with noise='clipped', which has its own so"),
    ({**CLIPPED, "normalize": False, "row_norm": 8.0}, "pass standardize=False"),
    ({**CLIPPED, "weights": "noise"}, "weights must be 'rows'"),
    ({**CLIPPED, "device": "cpu"}, "device must be left out with noise='clipped', which runs on the CPU"),
    ({**CLIPPED, "energy": 1.5}, r"energy must be a number between 0 and 1, got 1\.5"),
    *(({**PRIVATE, **mode}, "; pass standardize=False$") for mode in MODES_WITHOUT_VARIANCES),
    ({"epsilon": 1.0, "ranges": [(1, 0)] * 3}, "the smaller first"),
    ({"epsilon": 1.0, "ranges": [(0, INF)] * 3}, "two finite numbers"),
    ({"epsilon": 1.0, "ranges": [(0, 1)] * 2}, "one for each of the 3 columns"),
    ({"epsilon": 1.0, "codebook": 3}, "a CodeBook or the path of one"),
    ({"epsilon": 1.0, "codebook": "nowhere.toml"}, "got no file at nowhere.toml"),
    ({"epsilon": 1.0, "aggregation": "secure", "scale": np.ones(3)}, "must have a public bound"),
    ({"epsilon": 1.0, "scores_epsilon": 0.6}, "at most half"),
    ({"epsilon": 1.0, "scores_epsilon": INF}, "at most half"),
    ({"epsilon": INF, "scores_epsilon": 0.1}, "must be inf"),
    ({"epsilon": 1.0, "scores_epsilon": 1e-6}, "at least 0.0001"),
    ({"epsilon": 1.0, "scores_epsilon": -1.0}, "above 0"),
    ({"epsilon": 1.0, "scores_epsilon": 0.1, "n_components": 1}, "two components"),
    ({**STEP, "noise": "paper", "standardize": False, "scores_epsilon": 0.1}, "without noise='paper'"),
    ({**SECURE, "noise": "step"}, "must be used with noise='covariance'"),
    ({**SECURE, "solver": "krylov"}, "solver must be 'upload' with"),
    ({**SECURE, "local_steps": 2}, "solver must be 'upload' with aggregation='secure', got 'fedpower'; a s"),
    ({**SECURE, "n_participants": 2}, "n_participants must be left out with aggregation='secure', which"),
    ({**SECURE, "lookahead": True}, "lookahead must be left out with aggregation='secure', which"),
    ({**SECURE, "min_silos": 1}, "more silos than the 1 that may collude"),
    ({**SECURE, "colluders": 2}, "more silos than the 2 that may collude"),
    ({**SECURE, "colluders": 0}, "colluders must be a whole number of at least 1"),
    ({**PRIVATE, "colluders": 2}, "colluders must be left out with aggregation 'plain', got 2"),
]


@pytest.mark.parametrize(("parameters", "sentence"), REFUSED)
def test_terms_that_cannot_be_are_refused_in_one_sentence(parameters, sentence):
    for n_rows in (40, None):
        silos = [Unread(n_rows=n_rows), Unread(n_rows=n_rows)]
        with pytest.raises(FedpowerError, match=sentence) as caught:
            fed_pca(**{"n_components": 2, "epsilon": INF, **parameters}).fit_silos(silos)
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error")
def test_ledgers_of_others_and_for_what_is_not_private_are_refused(tmp_path):
    ledgers_in(tmp_path, ("north", "east"))
    silos = {"north": Unread(), "south": Unread()}
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for south, sentence in (("east", "got the ledger of silo 'east'"), ("west", "none at")):
        ledgers = {"north": tmp_path / "north.ledger", "south": tmp_path / f"{south}.ledger"}
        with pytest.raises(FedpowerError, match=sentence):
            fed_pca(2, **PRIVATE).fit_silos(silos, ledgers=ledgers)
    own = {name: tmp_path / f"{name}.ledger" for name in ("north", "east")}
    for terms, sentence in (
        ({"epsilon": 1.0, "solver": "krylov"}, "must be used with a public bound on row norms, got"),
        ({"epsilon": INF, "row_norm": 9.0}, "must be used with a finite epsilon, got epsilon=inf"),
    ):
        with pytest.raises(FedpowerError, match=sentence):
            fed_pca(2, **terms).fit_silos({name: Unread() for name in own}, ledgers=own)
    for wrong, sentence in (
        ({"north": tmp_path / "north.ledger"}, "every silo must have a ledger or none, got none for 'south'"),
        (str(tmp_path), "ledgers must be a mapping"),
    ):
        with pytest.raises(FedpowerError, match=sentence):
            fed_pca(2, **PRIVATE).fit_silos(silos, ledgers=wrong)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_solvers_have_in_common_is_no_solver():
    with pytest.raises(FedpowerError, match=r"solver must be one of 'auto', .*, got Iterative"):
        FedPCA(2, solver=Iterative()).fit_silos([Unread(), Unread()])


def test_fewer_rows_than_components_are_known_after_the_pass():
    rows = iter(np.split(np.random.default_rng(0).normal(size=(4, 6)), 2))
    with pytest.raises(FedpowerError, match=r"min\(n_samples, n_features\)=4"):
        FedPCA(5, epsilon=INF).fit_silos(list(rows))
