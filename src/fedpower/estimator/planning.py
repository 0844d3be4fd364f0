"""`fedpower.plan`: cost and accuracy of a fit, before anything is spent."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedpower.estimator.fedpca import FedPCA
from fedpower.estimator.fitting import Data
from fedpower.estimator.plan import Plan, eigenvalues_for
from fedpower.estimator.plan import plan as planned
from fedpower.estimator.terms import options_of
from fedpower.exceptions import require
from fedpower.rows.units import UnitRows


def plan(
    silos: Any,
    n_components: Any = None,
    *,
    n_features: int | None = None,
    gap: float | None = None,
    spectrum: Any = None,
    error: float | None = None,
    **options: Any,
) -> Plan:
    """Predict cost and accuracy of a fit, before anything is spent.

    Only the numbers of rows and columns of the silos are used. The error of the components also depends on
    their eigenvalues: give ``gap`` or ``spectrum``.

    Parameters
    ----------
    silos : list or mapping from names
        The number of rows of each silo, or the data as in `FedPCA.fit_silos`.
    n_components : int, float, "auto" or None, default=None
        As in `FedPCA`.
    n_features : int, default=None
        Number of columns, if ``silos`` are numbers of rows.
    gap : float, default=None
        A guess of the difference between the last eigenvalue that matters and the next, for rows of norm at
        most ``row_norm``, or 1.
    spectrum : array-like or Result, default=None
        A guess of the leading eigenvalues, or an earlier result.
    error : float, default=None
        A wanted error (sin θ): the plan finds the epsilon, or the number of rows, that it needs.
    **options
        Other parameters of `FedPCA`.

    Returns
    -------
    Plan
        Print it. ``candidates`` lists every solver and kind of noise with its cost and error.

    Examples
    --------
    >>> import fedpower
    >>> plan = fedpower.plan([5000] * 20, 4, n_features=50, epsilon=1.0, gap=0.02)
    >>> plan.chosen.solver, plan.chosen.rounds
    ('upload', 6)
    >>> plan.silos["silo-1"]
    5000
    """
    model = FedPCA(n_components, **options)
    held = [*(silos.values() if isinstance(silos, Mapping) else silos)] if hasattr(silos, "__len__") else []
    if held and all(isinstance(rows, int) for rows in held):
        require(n_features is not None, "n_features", "given with numbers of rows", n_features)
        wanted, sizes, width = options_of(model), silos, int(n_features or 0)
    else:
        require(n_features is None, "n_features", "left out with data", n_features)
        wanted, data = model._open(silos, "refuse")
        sizes, width = sizes_of(data), data.n_features
    values = eigenvalues_for(wanted, width, gap=gap, spectrum=spectrum)
    return planned(wanted, sizes=sizes, n_features=width, spectrum=values, error=error)


def sizes_of(data: Data, watched: Callable[[Any], Iterable[Any]] = iter) -> dict[str, int]:
    """Return the number of rows, or of persons, of each silo; files that do not state it are read."""
    return {
        name: source.n_units
        if isinstance(source, UnitRows)
        else source.n_rows or sum(int(block.shape[0]) for block in watched(source.blocks(2**16)))
        for name, source in data.sources.items()
    }
