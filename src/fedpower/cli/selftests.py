"""What fedpower does, done once in small: each test returns what it saw, or raises."""

import os
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedpower.cli.health import last_words

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedpower.privacy.sensitivity import Sensitivity

_NOISE_DRAWS = 20_000
CUDA = """
import torch
if torch.cuda.is_available():
    ones = torch.ones(64, 64, dtype=torch.float64, device="cuda")
    assert float((ones @ ones).sum()) == 64.0**3, "a product on the device is wrong"
    print(torch.cuda.get_device_name(), "with CUDA", torch.version.cuda)
"""
LOCKED = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError:
    print("locked")
"""


ANEW = "make the environment anew; if that does not help, report it"


class SelfTestError(Exception):
    """A self-test that ended otherwise than it must, in one sentence, and what to do about it."""

    def __init__(self, sentence: str, *, advice: str = ANEW) -> None:
        super().__init__(sentence)
        self.advice = advice


def blas() -> str:
    """Return which libraries multiply matrices, and with how many threads."""
    import numpy as np
    import threadpoolctl

    np.ones((2, 2)) @ np.ones((2, 2))
    pools = [
        f"{pool['internal_api']} {pool['version'] or ''}".strip() + f" on {pool['num_threads']} threads"
        for pool in threadpoolctl.threadpool_info()
        if pool["user_api"] == "blas"
    ]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{'; '.join(pools) or 'a library that tells nothing of itself'}; {cores} cores here"


def loops() -> str:
    """Return that the loops in C give what NumPy gives; empty where there are none."""
    import numpy as np

    from fedpower import native
    from fedpower.rows.treatment import RowTreatment
    from fedpower.sums.lattice import LatticeRows

    if native.loops() is None:
        return ""
    rows = np.random.default_rng(0).standard_normal((200, 9))
    rule = RowTreatment(row_norm=3.0)
    compiled, _ = LatticeRows(rule, 9).of_dense(rows)
    with native.switched_off():
        plain, _ = LatticeRows(rule, 9).of_dense(rows)
    if np.abs(compiled - plain).max() > 1:
        raise SelfTestError(
            "the loops in C must give the integers that NumPy gives to the last unit, got others",
            advice="set FEDPOWER_NATIVE=0, and report it",
        )
    return f"{native.account()}, and give what NumPy gives"


def exact_fit() -> str:
    """Return that a small fit over two silos is NumPy's eigendecomposition of the pooled rows."""
    import numpy as np

    from fedpower import FedPCA

    rows = np.random.default_rng(0).standard_normal((60, 4)) * [4.0, 3.0, 2.0, 1.0]
    model = FedPCA(2, epsilon=float("inf"), standardize=False).fit_silos([rows[:20], rows[20:]])
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    cosines = np.abs(np.einsum("ij,ji->i", model.components_, vectors[:, ::-1][:, :2]))
    close = np.allclose(model.explained_variance_, values[::-1][:2], rtol=1e-9)
    if not (close and np.allclose(cosines, 1.0, atol=1e-9)):
        raise SelfTestError("a fit over two silos must be the eigenvectors of the pooled rows, got others")
    return "two silos give the eigenvectors of the pooled rows"


def noise() -> str:
    """Return that the system's noise is fresh and of the size that is asked for."""
    import numpy as np

    from fedpower.privacy.noise import SystemNoise, gaussian_integers

    scale = 2**20
    drawn = [gaussian_integers(SystemNoise(), _NOISE_DRAWS, scale=scale) for _ in range(2)]
    if np.array_equal(drawn[0], drawn[1]):
        raise SelfTestError("noise must be fresh in every draw, got the same twice")
    for each in drawn:
        if abs(float(np.mean((each / scale) ** 2)) - 1) > 0.1:
            raise SelfTestError("noise must be of the size asked for, got another")
    return f"{_NOISE_DRAWS:,} draws of the operating system's generator, of the size asked for"


def private_fit() -> str:
    """Return that private fits have the epsilon they were asked for, and each its own noise."""
    import numpy as np

    from fedpower import CodeBook, FedPCA
    from fedpower.estimator.fit_warnings import NoiseWarning, RepeatedFitWarning
    from fedpower.privacy import epsilon_of, mu_of

    if abs(epsilon_of(mu_of(1.0, 1e-6), 1e-6) - 1.0) > 1e-6:
        raise SelfTestError("calibration and accounting must agree on epsilon, got two answers")
    rows = np.random.default_rng(0).standard_normal((60, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoiseWarning)  # 60 rows are noise, as they are meant to be
        warnings.simplefilter("ignore", RepeatedFitWarning)
        fits = [
            FedPCA(1, epsilon=1.0, delta=1e-6, codebook=CodeBook(row_norm=4.0)).fit(rows) for _ in range(2)
        ]
    if not all(model.privacy_.is_private for model in fits):
        raise SelfTestError("a fit with epsilon=1 must be private, got one that is not")
    if np.array_equal(fits[0].explained_variance_, fits[1].explained_variance_):
        raise SelfTestError("two private fits must have noise of their own, got the same")
    return "epsilon=1 is calibrated and stated, and two fits differ"


class _Nothing:
    """A query that is about no row, and its own rows."""

    label, public, n_rows = "self-test", b"", 1

    @property
    def sensitivity(self) -> "Sensitivity":
        from fedpower.privacy.sensitivity import of_counts

        return of_counts(1)

    def evaluate(self, rows: Any, exponents: Any) -> "NDArray[np.int64]":
        import numpy as np

        return np.zeros(1, dtype=np.int64)


def ledger(folder: Path | None) -> str:
    """Return that a ledger can be made, locked, charged and read again in a folder."""
    # ruff: noqa: PLC0415
    from fedpower.privacy import Ledger
    from fedpower.privacy.budget import QueryTerms
    from fedpower.privacy.noise import SystemNoise
    from fedpower.protocol.query import Rows
    from fedpower.protocol.release import Answering, Plain, Terms, release
    from fedpower.protocol.study import Study, budget_of

    query = _Nothing()
    study = Study(
        columns=None,
        n_features=1,
        iteration_rank=1,
        noise="clipped",
        epsilon=1.0,
        delta=1e-6,
        design=(QueryTerms(query.label, 1, 1.0),),
    )
    budget = budget_of(study)
    assert budget is not None, "epsilon is finite"
    with _scratch(folder) as place:
        path = Path(place) / "test.ledger"

        def look(answering: Answering) -> None:
            code = f"import sys; sys.argv[1:] = [{str(path)!r}]\n{LOCKED}"
            if last_words(code)[1] != "locked":
                raise SelfTestError(
                    f"a ledger in {Path(place).parent} must be locked for other processes, got a disk "
                    "that keeps no locks",
                    advice="keep ledgers on a disk of this machine",
                )
            answering(query)

        def ask(of: Ledger) -> list[int]:
            released, _ = release(
                query,
                cast("Rows", query),
                terms=Terms.of(study, budget, of, None),
                ledger=of,
                noise=SystemNoise(),
                channel=Plain(1),
                asking=look,
            )
            return [int(word) for word in released]

        with Ledger.create(path, epsilon=1.0, delta=1e-6) as made:
            first = ask(made)
        with Ledger.open(path) as opened:
            if ask(opened) != first or opened.spent().n_releases != 1:
                raise SelfTestError("a ledger must keep what it was charged, got something else")
        where = Path(place).parent
    return f"made, locked, charged and read again in {where} (SQLite {sqlite3.sqlite_version})"


@contextmanager
def _scratch(folder: Path | None) -> Iterator[str]:
    """Give a folder inside another, which must be there and may be written."""
    try:
        made = tempfile.TemporaryDirectory(dir=folder, prefix=".fedpower-doctor-")
    except OSError as error:
        place = tempfile.gettempdir() if folder is None else folder
        raise SelfTestError(
            f"{place} must be a folder that can be written, got none ({error.strerror})",
            advice="make it writable, or name another with --folder",
        ) from None
    with made as place:
        yield place


def device() -> str:
    """Return the GPU that PyTorch has here, tried; empty where there is none."""
    error, answer = last_words(CUDA)
    if error:
        raise SelfTestError(error)
    return answer
