"""Secure sums: as accurate as a trusted curator, and what they cost beside the plain upload.

Accuracy: both models of [FP §5] at the paper's sizes, m = 20, through the whole protocol; the curator is
one silo that holds all rows (Analyze-Gauss). Noise is seeded, for an experiment only. Cost: one silo's
upload and the coordinator's sum, beside the plain moment upload of the same rows in the same run.
"""

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import parser, report
from benchmarks.measuring import standard_error
from fedpower import FedPCA
from fedpower.engines.embedded import federate
from fedpower.experiments.driven import TREATMENT, KeptMoment, keep
from fedpower.experiments.models import spiked_covariance, stochastic_block
from fedpower.linalg import sin_theta
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise
from fedpower.protocol import Silo, Study
from fedpower.protocol.messages import (
    AskMoment,
    AskQuery,
    CallRoll,
    Message,
    PackedMoment,
    Present,
    QueryAnswer,
    encoded_size,
)
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.releases import PrivateReleases
from fedpower.protocol.roll import Identity, Place, Roll, n_neighbours, new_exchange_key, signed_content
from fedpower.protocol.secure import total
from fedpower.protocol.silo import assemble
from fedpower.protocol.solvers import SecureSettings, UploadSettings
from fedpower.protocol.solvers.upload import pool
from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.exact_moment import ExactMoments
from fedpower.sums.kernel import KernelChoice
from fedpower.sums.local import local_moment

Array = NDArray[np.float64]

EPSILONS = (10.0, 1.0, 0.5)
DELTA = 1e-4
WAYS = ("curator", "secure", "local")
ROWS = 2000
FIT_ROWS, FIT_COLUMNS = 200, 100


def main() -> None:
    """Measure accuracy, then cost."""
    options = _options()
    models: dict[str, Callable[[int], Any]] = {
        "Model I": lambda seed: spiked_covariance(seed=seed, n_rows=options.rows),
        "Model II": lambda seed: stochastic_block(seed=seed, n_nodes=options.nodes),
    }
    found = {name: accuracy(name, models[name], options) for name in options.models}
    costs = [cost(d, m, options) for d in options.columns for m in options.silos]
    whole = [fits(m, options) for m in options.fits]
    report(
        options,
        name="secure",
        settings={
            "delta": DELTA,
            "silos": 20,
            "colluders": 1,
            "rows of Model I": options.rows,
            "nodes of Model II": options.nodes,
            "seeds": list(range(options.seeds)),
            "rows drawn anew": f"every {options.noises_per_draw} seeds",
            "rows a silo in the costs": ROWS,
            "repeats of the costs": options.repeats,
        },
        columns=["model", "ε", "curator", "secure", "secure / curator", "each silo by itself"],
        rows=[
            [
                name,
                f"{epsilon:g}",
                *(_told(errors[f"{epsilon:g}"][way]) for way in ("curator", "secure")),
                _ratio(errors[f"{epsilon:g}"]),
                _told(errors[f"{epsilon:g}"]["local"]),
            ]
            for name, errors in found.items()
            for epsilon in EPSILONS
        ],
        raw={"accuracy": found, "cost": costs, "fits": whole},
        notes=[
            "Mean sin θ_k to the pooled rows' own eigenspace and its standard error. The curator holds "
            "all rows and adds the noise of one release at the same (ε, δ). With one colluder among 20 "
            f"the secure sum has √(20/19) = {math.sqrt(20 / 19):.3f} times its noise.",
        ],
        more=[
            (
                "Cost of one silo's upload and of the coordinator's sum, beside the plain upload of the "
                "same rows in the same run (medians).",
                [
                    "d", "silos", "MB up", "plain", "ratio", "kB down", "s a silo", "plain", "ratio",
                    "s to sum", "plain", "ratio",
                ],
                [_cost_row(each) for each in costs],
            )
        ]
        * bool(costs)
        + [
            (
                f"Whole fits in one process, {FIT_ROWS} × {FIT_COLUMNS} a silo: processor seconds, "
                "medians, and "
                "the median of the ratios within a repeat.",
                ["silos", "each shares masks with", "secure", "plain", "ratio"],
                [
                    [
                        str(each["n_silos"]),
                        str(each["neighbours"]),
                        *(f"{each[way]:.3g}" for way in ("secure", "plain")),
                        f"{each['ratio']:.2f}",
                    ]
                    for each in whole
                ],
            )
        ]
        * bool(whole),
    )  # fmt: skip


def accuracy(name: str, make: Callable[[int], Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return sin θ_k by ε and way, one number a seed."""
    errors: dict[str, dict[str, list[float]]] = {
        f"{epsilon:g}": {way: [] for way in WAYS} for epsilon in EPSILONS
    }
    silos: dict[str, Any] = {}
    for seed in range(options.seeds):
        if seed % options.noises_per_draw == 0:
            model = make(seed // options.noises_per_draw)
            silos = keep(model)
            together = {"all": PooledMoment(list(silos.values()))}
            values, vectors = np.linalg.eigh(together["all"].moment())
            truth = vectors[:, -model.rank :]
            gap = values[-model.rank] - values[-model.rank - 1]
        for place, epsilon in enumerate(EPSILONS):
            for way in WAYS:
                if way == "local" and seed % options.noises_per_draw:
                    continue  # for scale only
                noise = 100_000 * (seed + 1) + 100 * place + WAYS.index(way)
                held = together if way == "curator" else silos
                basis = run(way, held, epsilon=epsilon, rank=model.rank, seed=noise)
                errors[f"{epsilon:g}"][way].append(sin_theta(basis, truth))
        latest = {epsilon: round(reported["secure"][-1], 5) for epsilon, reported in errors.items()}
        print(f"{name}, seed {seed}, gap {gap:.2g}: {latest}", flush=True)
    return errors


class PooledMoment:
    """The moment of all rows, as a trusted curator would hold it."""

    def __init__(self, silos: list[KeptMoment]) -> None:
        self.n_rows = sum(silo.n_rows for silo in silos)
        self._moment = np.asarray(sum(silo.n_rows / self.n_rows * silo.moment() for silo in silos))
        self._sums = functools.reduce(ExactMoments.merge, (silo.sums() for silo in silos))
        self.source = open_source(self._moment, name="moment")
        self.treatment = TREATMENT
        self.choice = KernelChoice(kind="moment", reason="the moment is made once for all runs")
        self.device = None

    def moment(self, center: Array | None = None) -> Array:
        """Return A."""
        assert center is None
        return self._moment

    def sums(self) -> ExactMoments:
        """Return the sums over all rows in whole numbers."""
        return self._sums

    def trace(self, center: Array | None = None) -> float:
        """Return tr A."""
        assert center is None
        return float(np.trace(self._moment))


def run(way: str, silos: dict[str, Any], *, epsilon: float, rank: int, seed: int) -> Array:
    """Return the leading eigenvectors that one run through the protocol finds."""
    width = next(iter(silos.values())).moment().shape[0]
    keys = {name: Identity.new() for name in silos} if way == "secure" else {}
    study = _study(width, rank, epsilon, keys)
    outcome = federate(
        silos,
        study=study,
        settings=SecureSettings(study=study, rank=rank)
        if way == "secure"
        else UploadSettings(n_features=width, rank=rank, iteration_rank=rank),
        rng=np.random.default_rng(seed),
        identities=keys,
        noise=SeededNoiseForExperiments(seed),
        n_jobs=1,  # one seeded noise source, drawn from in a fixed order
    )
    return np.asarray(outcome.solution.vectors[:, :rank])


def cost(n_features: int, n_silos: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return bytes and seconds of one silo's upload and of the sum, secure and plain, side by side."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((ROWS, n_features))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    moment = local_moment(open_source(rows), RowTreatment(row_norm=1.0), rank=4, steps=1, on_lattice=True)
    moment.sums()  # once, before the clock starts
    keys = {f"silo-{place:03}": Identity.new() for place in range(n_silos)}
    secure_study, plain_study = (_study(n_features, 4, 1.0, chosen, center=True) for chosen in (keys, {}))
    name = next(iter(keys))
    found: dict[str, Any] = {"n_features": n_features, "n_silos": n_silos}
    seconds: dict[str, list[float]] = {way: [] for way in ("secure", "plain")}
    sums: dict[str, list[float]] = {way: [] for way in ("secure", "plain")}
    for _ in range(options.repeats):
        upload, took, up, down = _secure_upload(moment, secure_study, keys)
        seconds["secure"].append(took)
        sums["secure"].append(_timed(lambda sent=upload: total([sent.words] * n_silos)))
        packed, took, plain_up = _plain_upload(moment, plain_study, name)
        seconds["plain"].append(took)
        answers, sizes = dict.fromkeys(keys, packed), dict.fromkeys(keys, ROWS)
        sums["plain"].append(_timed(lambda sent=answers, rows=sizes: pool(sent, rows, n_features)))
        found |= {"secure_up": up, "secure_down": down, "plain_up": plain_up}
    found |= {f"{way}_seconds": statistics.median(seconds[way]) for way in seconds}
    found |= {f"{way}_sum_seconds": statistics.median(sums[way]) for way in sums}
    print(found, flush=True)
    return found


def fits(n_silos: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return processor seconds of whole fits in one process, secure and plain, side by side."""
    rng = np.random.default_rng(0)
    silos = [rng.standard_normal((FIT_ROWS, FIT_COLUMNS)) for _ in range(n_silos)]
    seconds: dict[str, list[float]] = {way: [] for way in ("secure", "plain")}
    for _ in range(options.repeats):
        for way, chosen in (("plain", {}), ("secure", {"aggregation": "secure"})):
            model = FedPCA(4, epsilon=1.0, delta=DELTA, row_norm=30.0, standardize=False, **chosen)
            started = time.process_time()
            model.fit_silos(silos)
            seconds[way].append(time.process_time() - started)
    ratios = [one / other for one, other in zip(seconds["secure"], seconds["plain"], strict=True)]
    found = {
        "n_silos": n_silos,
        "neighbours": n_neighbours(n_silos, 1) or n_silos - 1,
        **{way: statistics.median(each) for way, each in seconds.items()},
        "ratio": statistics.median(ratios),
    }
    print(found, flush=True)
    return found


def _secure_upload(
    moment: Any, study: Study, keys: dict[str, Identity]
) -> tuple[QueryAnswer, float, int, int]:
    """Return one silo's masked moment, the seconds for all it does, and its bytes up and down."""
    name = next(iter(keys))
    budget = budget_of(study)
    assert budget is not None
    with Ledger.in_memory(1.0, DELTA, silo=name) as ledger:
        silo = assemble(name, moment, study, ledger=ledger, identity=keys[name])
        call = _message(study, name, CallRoll(attempt=0))
        started = time.perf_counter()
        present = silo.answer(call)
        took = time.perf_counter() - started
        assert isinstance(present.body, Present)
        ask = _message(
            study, name, AskQuery(index=0, label="moment", roll=_roll(study, keys, present.body).to_bytes())
        )
        started = time.perf_counter()
        answer = silo.answer(ask)
        took += time.perf_counter() - started
    assert isinstance(answer.body, QueryAnswer), answer.body
    up = encoded_size(present) + encoded_size(answer)
    return answer.body, took, up, encoded_size(call) + encoded_size(ask)


def _roll(study: Study, keys: dict[str, Identity], first: Present) -> Roll:
    """Return a roll of the silo that is timed and of others, whose keys are made here."""
    places = []
    for place, (name, identity) in enumerate(keys.items()):
        key, signature = first.key, first.signature
        if place:
            key = new_exchange_key().public_key().public_bytes_raw()
            signature = identity.sign(
                signed_content(study=study.digest, run="run", attempt=0, silo=name, n_rows=ROWS, key=key)
            )
        places.append(Place(silo=name, n_rows=ROWS, key=key, signature=signature))
    return Roll(
        study=study.digest,
        run="run",
        attempt=0,
        places=tuple(places),
        neighbours=n_neighbours(len(places), study.colluders),
    )


def _plain_upload(moment: Any, study: Study, name: str) -> tuple[PackedMoment, float, int]:
    budget = budget_of(study)
    assert budget is not None
    with Ledger.in_memory(1.0, DELTA, silo=name) as ledger:
        releases = PrivateReleases(moment, study, budget, ledger=ledger, source=SystemNoise(), data=None)
        silo = Silo(name, study, releases)
        ask = _message(study, name, AskMoment())
        started = time.perf_counter()
        answer = silo.answer(ask)
        took = time.perf_counter() - started
    assert isinstance(answer.body, PackedMoment), answer.body
    return answer.body, took, encoded_size(answer)


def _study(
    width: int, rank: int, epsilon: float, keys: dict[str, Identity], *, center: bool = False
) -> Study:
    secure: dict[str, Any] = {}
    if keys:
        secure = {
            "aggregation": "secure",
            "colluders": 1,
            "identities": tuple((name, key.public) for name, key in keys.items()),
            "min_silos": len(keys),
        }
    return Study(
        columns=None,
        n_features=width,
        iteration_rank=rank,
        center=center,
        treatment=TREATMENT.digest(),
        noise="moment",
        epsilon=epsilon,
        delta=DELTA,
        **secure,
    )


def _message(study: Study, silo: str, body: Any) -> Message:
    return Message(study=study.digest, run="run", round=1, silo=silo, body=body)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _told(errors: list[float]) -> str:
    return f"{statistics.mean(errors):.4g} ± {standard_error(errors):.1g}"


def _ratio(errors: dict[str, list[float]]) -> str:
    return f"{statistics.mean(errors['secure']) / statistics.mean(errors['curator']):.3f}"


def _cost_row(each: dict[str, Any]) -> list[str]:
    ratios = [
        (f"{each[secure]:.3g}", f"{each[plain]:.3g}", f"{each[secure] / each[plain]:.2f}")
        for secure, plain in (
            ("secure_seconds", "plain_seconds"),
            ("secure_sum_seconds", "plain_sum_seconds"),
        )
    ]
    return [
        str(each["n_features"]),
        str(each["n_silos"]),
        f"{each['secure_up'] / 1e6:.3g}",
        f"{each['plain_up'] / 1e6:.3g}",
        f"{each['secure_up'] / each['plain_up']:.2f}",
        f"{each['secure_down'] / 1e3:.3g}",
        *ratios[0],
        *ratios[1],
    ]


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=2_000_000, help="of Model I")
    made.add_argument("--nodes", type=int, default=1000, help="of Model II")
    made.add_argument("--models", nargs="*", default=["Model I", "Model II"])
    made.add_argument("--seeds", type=int, default=20)
    made.add_argument("--noises-per-draw", type=int, default=5, help="seeds that share their rows")
    made.add_argument("--columns", type=int, nargs="*", default=[100, 1000, 3000])
    made.add_argument("--silos", type=int, nargs="+", default=[5, 20, 100])
    made.add_argument("--fits", type=int, nargs="*", default=[20, 100, 300], help="silos of whole fits")
    made.add_argument("--repeats", type=int, default=3)
    return made.parse_args()


if __name__ == "__main__":
    main()
