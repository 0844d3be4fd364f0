"""Agreement on columns: the same names in the same order at every silo, or the same width."""

from collections.abc import Sequence

from fedpower.data.checks import require_distinct, shown, without
from fedpower.data.source import Extra, RowSource
from fedpower.errors import InputError


def pick_columns(
    name: str, have: tuple[str, ...], want: tuple[str, ...], *, extra: Extra
) -> list[int]:
    """Return where each wanted column stands in `have`.

    Parameters
    ----------
    name : of the source, for the sentence.
    have, want : the source's columns and the agreed ones.
    extra : whether columns beyond the agreed ones are refused or dropped.
    """
    if extra not in ("refuse", "drop"):
        raise InputError(f"extra must be 'refuse' or 'drop', got '{extra}'; choose one of the two")
    require_distinct("columns", want)
    if not want:
        raise InputError("columns must name at least one column, got none; name the features")
    places = {column: place for place, column in enumerate(have)}
    missing = [column for column in want if column not in places]
    if missing:
        raise InputError(
            f"{name} must have the columns every silo agreed on, got a source without "
            f"{shown(missing)}; add them or agree on columns that every silo has"
        )
    wanted = set(want)
    surplus = [column for column in have if column not in wanted]
    if surplus and extra == "refuse":
        raise InputError(
            f"{name} must have only the columns every silo agreed on, got also {shown(surplus)}; "
            'remove them, or leave them out with extra_columns="drop" (extra="drop" of open_source)'
        )
    return [places[column] for column in want]


def match_columns(
    sources: Sequence[RowSource], *, columns: Sequence[str] | None = None, extra: Extra = "refuse"
) -> tuple[tuple[str, ...] | None, list[RowSource]]:
    """Return the agreed columns and the sources with exactly these, in this order.

    Parameters
    ----------
    sources : the silos' rows. Named sources are matched by name, unnamed ones by position.
    columns : the agreed columns; by default those of the first source, or, where ``extra`` drops,
        those of it that every source has. For unnamed sources only their number counts.
    extra : ``"refuse"`` or ``"drop"`` columns beyond the agreed ones.
    """
    if not sources:
        raise InputError("at least one source must be given, got none; name the silos' data")
    named = [source for source in sources if source.columns is not None]
    unnamed = [source for source in sources if source.columns is None]
    if named and unnamed:
        raise InputError(
            f"either every source or none must have column names, got names in {named[0].name} "
            "and none "
            f"in {unnamed[0].name}; name the columns of {unnamed[0].name} with open_source(data, "
            "columns=[...])"
        )
    agreed = sources[0].columns if columns is None else tuple(columns)
    if columns is None and extra == "drop" and agreed is not None and not unnamed:
        shared = tuple(
            name for name in agreed if all(name in s.columns for s in named if s.columns)
        )
        if not shared:
            raise InputError(
                f"the silos must share a column at least, got none in common with {sources[0].name}; "
                "check that the files hold the same table"
            )
        agreed = shared
    if unnamed:
        _require_equal_width(unnamed, agreed)
        return agreed, list(unnamed)
    wanted = agreed or ()
    if "" in wanted:
        raise InputError(
            f"every column of {sources[0].name} must have a name, got none for column "
            f"{wanted.index('') + 1}; name it, or leave it out ({without('')})"
        )
    return agreed, [
        source if source.columns == agreed else source.select(wanted, extra=extra)
        for source in named
    ]


def columns_of_fit(source: RowSource, names: tuple[str, ...] | None, n_features: int) -> RowSource:
    """Return a source of new rows with the columns of a fit: by name where both have names.

    Parameters
    ----------
    source : the new rows; further columns are left out.
    names : of the fit's columns, in order; None where they have none.
    n_features : how many there are.
    """
    if names is not None and source.columns is not None:
        missing = [name for name in names if name not in source.columns]
        if missing:
            raise InputError(
                f"{source.name} must have every column of the fit, got none named "
                f"{missing[0]!r}{f' and {len(missing) - 1} more' if missing[1:] else ''}; "
                "add it, or fit without it"
            )
        return source.select(names, extra="drop")
    if source.n_features != n_features:
        raise InputError(
            f"{source.name} must have the {n_features} columns of the fit, got "
            f"{source.n_features}; give the same columns in the same order"
        )
    return source


def _require_equal_width(sources: Sequence[RowSource], agreed: tuple[str, ...] | None) -> None:
    """Refuse unnamed sources that differ in width, from each other or from the agreed columns."""
    width = sources[0].n_features if agreed is None else len(agreed)
    origin = f"{width} in {sources[0].name}" if agreed is None else f"{width} agreed"
    for source in sources:
        if source.n_features != width:
            raise InputError(
                f"sources without column names must have equally many columns, got {origin} and "
                f"{source.n_features} in {source.name}; give every silo the same columns "
                "(open_source(path, n_features=...) for svmlight files)"
            )
