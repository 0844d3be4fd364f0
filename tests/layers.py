"""Networks with planted communities, in memory and as files of every form."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[np.float64]


def planted(n_nodes: int = 60, k: int = 2, *, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """A symmetric adjacency of zeros and ones, and each node's community."""
    labels = np.arange(n_nodes) * k // n_nodes
    chance = np.where(labels[:, np.newaxis] == labels, 0.6, 0.1)
    upper = np.triu(np.random.default_rng(seed).random(chance.shape) < chance, 1)
    return (upper | upper.T).astype(float), labels


def names_of(n_nodes: int) -> tuple[str, ...]:
    return tuple(f"v{place:03d}" for place in range(n_nodes))


def write_layer(path: Path, adjacency: Array) -> Path:
    names = names_of(len(adjacency))
    edges = [(names[one], names[two]) for one, two in np.argwhere(np.triu(adjacency) > 0)]
    match path.suffix:
        case ".npz":
            sparse.save_npz(path, sparse.csr_array(adjacency))
        case ".npy":
            np.save(path, adjacency)
        case ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            one, two = zip(*edges, strict=True)
            pq.write_table(pa.table({"source": one, "target": two}), path)
        case ending:
            with path.open("w", newline="") as stream:
                writer = csv.writer(stream, delimiter="\t" if ending == ".tsv" else ",")
                writer.writerow(["source", "target"])
                writer.writerows(edges)
    return path


def write_nodes(path: Path, n_nodes: int) -> Path:
    path.write_text("".join(f"{name}\n" for name in names_of(n_nodes)))
    return path
