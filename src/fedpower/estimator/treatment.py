"""What the parameters of a fit say is done to each row, and what is yet to be found."""

import warnings
from collections.abc import Iterable
from os import PathLike
from typing import Any

import numpy as np

from fedpower.errors import InputError, Sentence
from fedpower.estimator.fit_warnings import PrivacyLeakWarning
from fedpower.parameters import Parameters
from fedpower.report.codebook_file import read_code_book
from fedpower.rows.columns import LARGEST, public_vector
from fedpower.rows.source import RowSource
from fedpower.rows.treatment import RowTreatment, largest_row_norm
from fedpower.rules.codebook import CodeBook, Ranges, ranges_of
from fedpower.rules.rules import TableRules


def public_treatment(parameters: Parameters, columns: tuple[str, ...] | None = None) -> RowTreatment:
    """Return what the parameters say is done to each row; ``columns`` are names, where there are any."""
    if parameters.network == "edge":
        _check_edges(parameters)
        return RowTreatment(row_norm=1.0)  # edges are given in units of their public maximum
    book = code_book_of(parameters)
    if book is not None:
        return book.treatment
    center, offset = None, parameters.public_offset
    if offset is not None:
        given = "center" if parameters.offset is None else "offset"
        if offset is not parameters.offset and parameters.offset is not None:
            raise InputError(
                "a public centre is an offset, and must be given once, got center and offset; give "
                "offset, and center=True or False"
            )
        center = public_vector(given, offset, columns=columns)
    scale = None
    if parameters.scale is not None:
        scale = public_vector("scale", parameters.scale, columns=columns, positive=True)
    low = high = None
    if parameters.ranges is not None and not prepares(parameters):
        width = len(parameters.ranges) if columns is None else len(columns)
        known = ranges_of(parameters.ranges, columns, width)
        low = np.array([-LARGEST if each is None else each[0] for each in known])
        high = np.array([LARGEST if each is None else each[1] for each in known])
        center = np.zeros(width) if center is None else center
    return RowTreatment(
        center=center,
        scale=scale,
        row_norm=parameters.row_norm,
        normalize=bool(parameters.normalize),
        low=low,
        high=high,
    )


def _check_edges(parameters: Parameters) -> None:
    """Refuse what is about rows where an edge is what is protected."""
    given = [
        name
        for name in ("row_norm", "scale", "offset", "ranges", "codebook", "device", "scores_epsilon")
        if getattr(parameters, name) is not None
    ]
    given += ["normalize"] if parameters.normalize else []
    given += [] if parameters.weights == "rows" else ["weights"]
    if given:
        raise InputError(
            "{odd} must be left alone with {network:edge}, where no row is treated, got it too; leave it out",
            odd=Sentence("{" + given[0] + "}"),
        )


def given_book(parameters: Parameters) -> CodeBook | None:
    """Return the code book that was given, a draft or not, read from its file where it is a path."""
    given = parameters.codebook
    if given is None or isinstance(given, CodeBook):
        return given
    if not isinstance(given, str | PathLike):
        raise InputError(
            f"codebook must be a CodeBook or the path of one, got {type(given).__name__}; make one with "
            "`fedpower prepare`"
        )
    return read_code_book(given)


def rules_of(parameters: Parameters) -> TableRules | None:
    """Return the rules of the silos' tables, with what stands for missing cells; None without any."""
    book = code_book_of(parameters) or given_book(parameters)
    rules = None if book is None else book.table_rules
    return rules if rules is None or prepares(parameters) else rules.with_fills()


def known_ranges(parameters: Parameters, columns: tuple[str, ...] | None, n_features: int) -> Ranges:
    """Return what columns are known to lie between: by what was said of them, else by their rules."""
    said = ranges_of(parameters.ranges, columns, n_features)
    rules = rules_of(parameters)
    if rules is None or columns is None:
        return said
    return tuple(each or ruled for each, ruled in zip(said, rules.ranges(columns), strict=True))


def code_book_of(parameters: Parameters) -> CodeBook | None:
    """Return the code book that was given, if it has the numbers; None without one, or for a draft."""
    given = parameters.codebook
    if given is None:
        return None
    if isinstance(given, CodeBook) and given.is_draft:
        return None
    contradicting = [
        name for name in ("row_norm", "scale", "offset", "ranges") if getattr(parameters, name) is not None
    ] + (["normalize"] if parameters.normalize else [])
    if not isinstance(parameters.center, bool | np.bool_):
        contradicting.append("center")
    if contradicting and not _is_readable_draft(given):
        raise InputError(
            "{option} must be left alone with {codebook}, which says it already, got both; leave one of "
            "them out",
            option=Sentence("{" + contradicting[0] + "}"),
        )
    book = given_book(parameters)
    return None if book is None or book.is_draft else book


def _is_readable_draft(given: Any) -> bool:
    """Return whether a path is that of a draft, which says nothing of numbers."""
    try:
        return isinstance(given, str | PathLike) and read_code_book(given).is_draft
    except InputError:
        return False


def prepares(parameters: Parameters) -> bool:
    """Return whether a fit finds offset, scale and bound privately: where it was told none of them."""
    given = (parameters.row_norm, parameters.scale, parameters.public_offset)
    return (
        parameters.is_private
        and parameters.network is None
        and not parameters.normalize
        and all(each is None for each in given)
        and parameters.noise in ("auto", "moment")
        and parameters.solver in ("auto", "moment")
        and not parameters.paper_settings
        and code_book_of(parameters) is None
    )


def takes_gaps(parameters: Parameters) -> bool:
    """Return whether missing numbers count for nothing: where an offset is found, or in a code book."""
    return prepares(parameters) or code_book_of(parameters) is not None


_BOUND_READ = "the bound on the norm of a row was read from the rows themselves"


def treatment_of(
    parameters: Parameters, columns: tuple[str, ...] | None, sources: Iterable[RowSource]
) -> tuple[RowTreatment | None, str | None]:
    """Return what is done to each row before it counts, and what leaked in finding it, or None."""
    if prepares(parameters):
        return None, None
    treatment = public_treatment(parameters, columns)
    if not parameters.is_private or treatment.bounded:
        return treatment, None
    if parameters.aggregation == "secure":
        raise InputError(
            Sentence(
                "{aggregation:secure} with public centres or scales must know a public bound on the norm "
                "of a row too, got none; give {row_norm:B}, or leave all of them out to have them found "
                "privately"
            )
        )
    bound = max(largest_row_norm(source, treatment) for source in sources)
    warnings.warn(
        Sentence(
            "{row_norm} was not given, so the largest norm was read from the rows themselves: that is "
            "not private; give {row_norm:B} as a public bound, or {normalize:True}"
        ),
        PrivacyLeakWarning,
        stacklevel=4,
    )
    found = RowTreatment(center=treatment.center, scale=treatment.scale, row_norm=bound if bound > 0 else 1.0)
    return found, _BOUND_READ
