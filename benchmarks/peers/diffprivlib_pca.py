"""diffprivlib's PCA on rows of norm at most 1: pure ε, taken as centred.

    python diffprivlib_pca.py DATA.npz FOUND.jsonl

DATA holds `rows`, `rank`, `epsilons` and `seeds`; a line of FOUND is one fit.
"""

import json
import sys
import time

import numpy as np
from diffprivlib.models import PCA


def main(data: str, found: str) -> None:
    """Fit once for every ε and seed, smallest ε first, and write each fit down at once."""
    task = np.load(data)
    rows, rank = task["rows"], int(task["rank"])
    with open(found, "w", buffering=1) as lines:  # noqa: PTH123  (the peers' scripts stay bare)
        for epsilon in task["epsilons"].tolist():
            for seed in task["seeds"].tolist():
                began = time.process_time()
                model = PCA(rank, epsilon=epsilon, data_norm=1.0, centered=True, random_state=seed)
                basis = model.fit(rows.copy()).components_[:rank].T
                line = {
                    "epsilon": epsilon,
                    "seed": seed,
                    "seconds": time.process_time() - began,
                    "basis": basis.tolist(),
                }
                lines.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
