"""OpenDP's PCA on rows of norm at most 1: pure ε, the centre known to be zero.

    python opendp_pca.py DATA.npz FOUND.jsonl

DATA holds `rows`, `rank`, `epsilons` and `seeds`; a line of FOUND is one fit. OpenDP draws from the
operating system, so seeds only count repetitions.
"""

import json
import sys
import time

import numpy as np
import opendp.prelude as dp


def main(data: str, found: str) -> None:
    """Fit once for every ε and repetition, smallest ε first, and write each fit down at once."""
    dp.enable_features("contrib", "idealized-numerics", "honest-but-curious")
    task = np.load(data)
    rows, rank = task["rows"], int(task["rank"])
    domain = dp.numpy.array2_domain(
        norm=1.0, p=2, origin=0.0, size=len(rows), num_columns=rows.shape[1], T=float
    )
    with open(found, "w", buffering=1) as lines:  # noqa: PTH123  (the peers' scripts stay bare)
        for epsilon in task["epsilons"].tolist():
            for seed in task["seeds"].tolist():
                began = time.process_time()
                release = dp.sklearn.decomposition.make_private_pca(
                    domain, dp.symmetric_distance(), epsilon, num_components=rank
                )
                spent = release.map(2)  # replacing a row is one removal and one addition
                if spent > epsilon * (1 + 1e-9):
                    sys.exit(f"OpenDP's PCA must cost {epsilon} when a row is replaced, got {spent}")
                basis = release(rows).Vt[:rank].T
                line = {
                    "epsilon": epsilon,
                    "seed": seed,
                    "seconds": time.process_time() - began,
                    "basis": basis.tolist(),
                }
                lines.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
