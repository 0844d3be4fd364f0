"""What whoever fits is warned of: noise, bounds, copies, small silos, what was read from rows."""

import warnings
from collections.abc import Iterable, Mapping

from fedpower.errors import Sentence
from fedpower.privacy.statement import counted_as
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.solvers.upload import same_rows
from fedpower.protocol.study import Study
from fedpower.protocol.weights import costly_sentence, costly_silos
from fedpower.report.result import Result
from fedpower.report.view import cause_of_noise
from fedpower.rows.networks import Weighed
from fedpower.sums.local import LocalMoment
from fedpower.sums.own_rows import far_columns, pooled_columns, told_of_levels, told_of_units, units_sentence
from fedpower.sums.survey import Survey


class PrivacyLeakWarning(RuntimeWarning):
    """Something was read from the rows that should have been given as a public fact."""


def warn_of_delta(study: Study, sizes: Iterable[int]) -> None:
    """Warn of a δ at which a mechanism may keep its promise and still give a whole row, or edge, away."""
    one = counted_as({"unit": study.unit, "rows_per_unit": study.rows_per_unit})
    least, all_of_them = min(sizes), f"{one}s"
    if study.network == "edge":
        nodes = study.n_features
        least, one, all_of_them = nodes * (nodes - 1) // 2, "pair of nodes", "pairs of nodes"
    if study.is_private and study.delta * least > 1:
        warnings.warn(
            f"delta should be below 1/{all_of_them} of every silo, got {study.delta:g} where one has "
            f"{least} {all_of_them}: so large a delta lets a {one} be given away as it is; leave delta "
            "out, or give 1e-6",
            UserWarning,
            stacklevel=4,
        )


class NoiseWarning(UserWarning):
    """No component of a private fit is determined: what it found may be noise alone."""


def warn_of_noise(result: Result, stacklevel: int = 4) -> None:
    """Warn of a fit that found nothing for certain, and say what would help."""
    cause = cause_of_noise(result)
    if cause is not None:
        warnings.warn(
            Sentence("no component is determined: each may be more than 45° off; {cause}", cause=cause),
            NoiseWarning,
            stacklevel=stacklevel,
        )


class ClippingWarning(UserWarning):
    """A bound hardly fits the rows, or the edges: told to whoever holds them, and kept nowhere."""


class RowsWarning(UserWarning):
    """Something looks odd in a silo's rows: shown to whoever holds them, and kept nowhere."""


def warn_of_rows(study: Study, moments: Mapping[str, LocalMoment] | Mapping[str, Survey]) -> None:
    """Warn of words that are no level of their column, and of columns that may be in other units."""
    held: list[LocalMoment | Survey] = [*moments.values()]
    levels = {place for group in study.groups for place in group}
    said = list(dict.fromkeys(each for moment in held for each in told_of_levels(moment.source)))
    pooled = pooled_columns([each for each in held if isinstance(each, LocalMoment)])
    for place, moment in enumerate(held if len(held) > 1 else ()):
        if pooled is None:
            odd = told_of_units(moment, levels=levels, columns=study.columns)
        else:
            far = far_columns(*pooled[place], moment.n_rows)
            odd = units_sentence(moment.source.name, far, levels=levels, columns=study.columns)
        said += [] if odd is None else [odd]
    for sentence in said:
        warnings.warn(sentence, RowsWarning, stacklevel=4)


_LIGHT = 0.1
"""Of the public maximum: where no edge weighs as much, noise is ten times what it need be."""


def warn_of_clipping(counts: Mapping[str, tuple[int, int]]) -> None:
    """Warn whoever holds the rows of a bound that every one exceeds; there is a result all the same."""
    if all(count == rows for count, rows in counts.values()):
        warnings.warn(
            Sentence(
                "every row is longer than {row_norm}, so that their directions alone count; give public "
                "centres and scales, or a larger bound"
            ),
            ClippingWarning,
            stacklevel=5,
        )


def weights_told(networks: Iterable[Weighed]) -> Sentence | None:
    """Return what whoever holds networks should know of a public maximum that hardly fits; else None."""
    weighed = list(networks)
    edges, capped = (sum(getattr(each, name) for each in weighed) for name in ("n_edges", "n_capped"))
    if 2 * capped > edges:
        return Sentence(
            "{capped} of {edges} edges weigh more than {edge_weight} and are capped at it, so that what "
            "they weigh hardly counts; give a larger public maximum",
            capped=capped,
            edges=edges,
        )
    heaviest = max((each.heaviest for each in weighed), default=0.0)
    if 0 < heaviest < _LIGHT:
        return Sentence(
            "no edge weighs more than {share:.2g} of {edge_weight}, for which noise is made, so that it "
            "drowns them; give a smaller public maximum",
            share=heaviest,
        )
    return None


def warn_of_weights(networks: Iterable[Weighed]) -> None:
    """Warn whoever holds networks of a public maximum that hardly fits; there is a result anyway."""
    told = weights_told(networks)
    if told is not None:
        warnings.warn(told, ClippingWarning, stacklevel=5)


def warn_of_costly_silos(study: Study, sizes: Mapping[str, int]) -> None:
    """Warn of silos whose noise costs more than their rows bring; sizes are public."""
    budget = budget_of(study)
    if budget is None or study.aggregation == "secure":
        return
    costly, share = costly_silos(budget, sizes, study.weights)
    if costly:
        thing = counted_as({"unit": study.unit, "rows_per_unit": study.rows_per_unit})
        warnings.warn(costly_sentence(costly, share, sizes, thing), UserWarning, stacklevel=4)


def warn_of_copies(study: Study, moments: Mapping[str, LocalMoment] | Mapping[str, Survey]) -> None:
    """Warn of silos of a private fit that hold the same rows: told to who runs it, and kept nowhere."""
    if not study.is_private:
        return
    first: dict[tuple[int, float, bytes], str] = {}
    for name, each in moments.items():
        if isinstance(each, Survey):  # nothing was summed of rows that are yet to be prepared
            return
        trace = each.trace()
        if trace > 0:
            known = first.setdefault((each.n_rows, trace, each.mean().tobytes()), name)
            if known != name:
                warnings.warn(same_rows(known, name), UserWarning, stacklevel=4)
