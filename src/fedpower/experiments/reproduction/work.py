"""The whole work: repetition after repetition, those that are finished read back."""

from collections.abc import Callable

from fedpower.experiments.reproduction.curves import Curve, curves_of
from fedpower.experiments.reproduction.runs import Run, run_repetition
from fedpower.experiments.reproduction.settings import ModelName, Settings
from fedpower.experiments.reproduction.store import Store
from fedpower.experiments.reproduction.table import Table, table_of

MODELS: tuple[ModelName, ...] = ("I", "II")


def reproduce(
    settings: Settings,
    store: Store,
    *,
    on_progress: Callable[[int, int, bool], None] | None = None,
    n_jobs: int | None = None,
) -> Table:
    """Return the table of all runs; what the store holds is not run again.

    Parameters
    ----------
    settings
        What is reproduced.
    store
        Where finished repetitions are kept.
    on_progress
        Called with the runs done, the runs to do, and whether these were read back.
    n_jobs
        How many curves run at once; the number of cores unless given. Plays no part in the outcome.
    """
    curves = curves_of(settings)
    total = len(curves) * settings.repetitions
    finished: dict[tuple[ModelName, int], list[Run]] = {}
    done = 0

    def advance(count: int, *, kept: bool = False) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, total, kept)

    places = [(repetition, model) for repetition in range(settings.repetitions) for model in MODELS]
    for repetition, model in places:
        kept = store.load(model, repetition, _of(curves, model))
        if kept is not None:
            finished[model, repetition] = kept
            advance(len(kept), kept=True)
    for repetition, model in places:
        mine = _of(curves, model)
        if (model, repetition) in finished or not mine:
            continue
        runs = run_repetition(settings, model, repetition, mine, on_curves=advance, n_jobs=n_jobs)
        store.save(model, repetition, runs)
        finished[model, repetition] = runs
    order = {curve: place for place, curve in enumerate(curves)}
    pairs = [(repetition, run) for (_, repetition), runs in finished.items() for run in runs]
    return table_of(sorted(pairs, key=lambda pair: (order[pair[1].curve], pair[0])))


def _of(curves: list[Curve], model: ModelName) -> list[Curve]:
    return [curve for curve in curves if curve.model == model]
