"""A peer's own PCA on rows of norm at most 1, pure ε, in the peer's own environment: nothing of ours.

    python pca.py PEER DATA.npz FOUND.jsonl

DATA holds `rows`, `rank`, `epsilons` and `seeds`; a line of FOUND is one fit, smallest ε first.
"""

import json
import sys
import time

import numpy as np


def diffprivlib(rows, rank, epsilon, seed):
    from diffprivlib.models import PCA

    model = PCA(rank, epsilon=epsilon, data_norm=1.0, centered=True, random_state=seed)
    return model.fit(rows.copy()).components_[:rank].T


def opendp(rows, rank, epsilon, _):  # draws from the operating system, so seeds only count repetitions
    import opendp.prelude as dp

    dp.enable_features("contrib", "idealized-numerics", "honest-but-curious")
    shape = {"size": len(rows), "num_columns": rows.shape[1]}
    domain = dp.numpy.array2_domain(norm=1.0, p=2, origin=0.0, T=float, **shape)
    make = dp.sklearn.decomposition.make_private_pca
    release = make(domain, dp.symmetric_distance(), epsilon, num_components=rank)
    spent = release.map(2)  # replacing a row is one removal and one addition
    if spent > epsilon * (1 + 1e-9):
        sys.exit(f"OpenDP's PCA must cost {epsilon} when a row is replaced, got {spent}")
    return release(rows).Vt[:rank].T


def main(peer, data, found):
    task, fit = np.load(data), {"diffprivlib": diffprivlib, "opendp": opendp}[peer]
    with open(found, "w", buffering=1) as lines:  # noqa: PTH123
        for epsilon in task["epsilons"].tolist():
            for seed in task["seeds"].tolist():
                began = time.process_time()
                basis = fit(task["rows"], int(task["rank"]), epsilon, seed)
                line = {"epsilon": epsilon, "seed": seed, "seconds": time.process_time() - began}
                lines.write(json.dumps({**line, "basis": basis.tolist()}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
