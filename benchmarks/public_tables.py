"""Real tables that packages ship, as numbers.

The packages are installed for this alone: `pip install --no-deps statsmodels lifelines scikit-survival
vega_datasets pandas`. Only their data files are read. Columns that number
the rows, times and outcomes of a study stay: a table is taken as it is. Rows with a missing cell are left
out, and columns where more than a tenth is missing.
"""

import io
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data_sets import Array

TABLES = {
    "election": "statsmodels/datasets/anes96/anes96.csv",
    "affairs": "statsmodels/datasets/fair/fair.csv",
    "travel": "statsmodels/datasets/modechoice/src/TableF18-2.csv",
    "health insurance": "statsmodels/datasets/randhie/randhie.csv",
    "schools": "statsmodels/datasets/star98/star98.csv",
    "HIV trial 175": "lifelines/datasets/ACTG175.csv",
    "HIV trial 320": "sksurv/datasets/data/actg320.arff",
    "breast cancer trial": "sksurv/datasets/data/GBSG2.arff",
    "kidneys": "lifelines/datasets/kidney_transplant.csv",
    "arrests": "lifelines/datasets/rossi.csv",
    "asthma": "lifelines/datasets/recur.csv",
    "light chains": "sksurv/datasets/data/flchain.arff",
    "cars": "vega_datasets/_data/cars.json",
    "weather in Seattle": "vega_datasets/_data/seattle-weather.csv",
    "breast cancer": "sklearn/datasets/data/breast_cancer.csv",
    "diabetes": "sklearn:diabetes",
    "digits": "sklearn:digits",
    "wine": "sklearn:wine",
}

_INDEX = ("unnamed: 0", "id", "pidnum", "index", "row id")
"""Columns that only number rows."""


def tables(names: dict[str, str]) -> Iterator[tuple[str, Array]]:
    for name, path in names.items():
        found = _read(path)
        if found is not None:
            yield name, found


def _read(path: str) -> Array | None:
    import pandas as pd  # type: ignore[import-untyped]

    if path.startswith("sklearn:"):
        import sklearn.datasets

        loaded: Any = getattr(sklearn.datasets, f"load_{path.removeprefix('sklearn:')}")()
        return _usable(pd.DataFrame(loaded.data))
    package, _, rest = path.partition("/")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / rest
    if file.suffix == ".json":
        return _usable(pd.read_json(file))
    if file.suffix == ".arff":
        from scipy.io import arff

        return _usable(pd.DataFrame(arff.loadarff(io.StringIO(file.read_text()))[0]))
    if package == "sklearn":
        return _usable(pd.read_csv(file, skiprows=1, header=None).iloc[:, :-1])
    return _usable(pd.read_csv(file, sep=None, engine="python"))


def _usable(table: Any) -> Array:
    import pandas as pd

    columns = []
    for name in table.columns:
        cells = table[name]
        if str(name).strip("' ").lower() in _INDEX:
            continue
        numbers = pd.to_numeric(cells, errors="coerce") if cells.dtype.kind in "OSU" else cells
        if numbers.dtype.kind not in "iufb":
            continue
        if numbers.isna().all():
            codes, levels = pd.factorize(cells, sort=True)
            if len(levels) != 2:
                continue
            numbers = pd.Series(np.where(codes < 0, np.nan, codes), index=cells.index)
        if numbers.isna().mean() < 0.1 and numbers.nunique() > 1:
            columns.append(numbers.astype(float))
    found = pd.concat(columns, axis=1).dropna().to_numpy(float)
    return np.asarray(found[:, found.std(axis=0) > 0])
