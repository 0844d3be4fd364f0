"""`fedpower inspect`: what tables hold, for their owner's eyes, and a draft of rules for everybody's."""

from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import print_json, print_table
from fedpower.cli.options import TEXT, Command, option, options, reading_of
from fedpower.errors import InputError
from fedpower.report.codebook_file import FORMAT, as_toml, toml_key
from fedpower.report.files import new_file
from fedpower.report.record import plain
from fedpower.report.text import number
from fedpower.rows.inspecting import ColumnLook, draft_of, look_at, stored_types
from fedpower.rows.opening import is_text, open_source

_SHOWN, _LONGEST = 5, 24
"""Levels that are shown of a column, and letters of a level."""

_PUBLIC = """\
# A draft of a code book: what the cells of tables become, one rule a column.
# It was written from names and stored types alone, and no row has a part in it. Fill in every
"""
_CONFIDENTIAL = """\
# Confidential: drafted from rows. Do not send; propose a code book from what you know instead.
# What the cells of tables become, one rule a column. Compare it with what you know, and fill in every
"""
_HEAD = """\
# kind = "" and what all organisations agree on, from the form or the code list of the study:
#   levels = ["F", "M"]            one column each, and one for all other words
#   ordered = ["low", "high"]      numbers 0, 1, ... in this order
#   kind = "yes/no"                1 and 0; true and false, y and n, t and f too
#   kind = "number"                with range = [0, 120] nothing is spent on finding it
#   kind = "date"                  with origin = "2000-01-01" and unit = "days"
#   kind = "drop"                  no feature
# A missing number counts for nothing in a private fit: missing = "offset", the default. Write
# missing = 0.0 for a value, indicator = true for a column that says where they are, and
# missing_words = ["NA", "."] for what else than an empty cell is one. Levels need a rule: missing =
# "other", or indicator = true.
"""


@click.command(cls=Command, epilog="Example: fedpower inspect north.csv --draft codebook.toml")
@options(
    "files",
    option("--draft FILE", "Draft rules from names and stored types here."),
    option("--from-rows", "With --draft: guess kinds from rows; the draft is confidential."),
    f"{TEXT} force as_json",
)
def inspect(
    files: tuple[str, ...], *, draft: Path | None, from_rows: bool, force: bool, as_json: bool, **reading: Any
) -> None:
    """Inspect the columns of FILES: types, missing cells, levels, and doubtful columns.

    It is for your eyes: what it prints is read from rows, and nothing of it leaves this screen. A draft
    has names and stored types only. Text files store no types: fill in the kind of each column.
    """
    if from_rows and draft is None:
        raise InputError("--from-rows must go with --draft, got no file for it")
    sources = {
        name: open_source(Path(name), **(reading_of(reading) if is_text(name) else {})) for name in files
    }
    columns = {name: look_at(source) for name, source in sources.items()}
    if draft is not None:
        types = [
            {look.name: look.type for look in columns[name]} if from_rows else stored_types(source)
            for name, source in sources.items()
        ]
        with new_file(draft, force=force) as place:
            place.write_text(_drafted(types, from_rows=from_rows), encoding="utf-8")
    if as_json:
        record: dict[str, Any] = {"draft": None if draft is None else str(draft)}
        record["files"] = {name: [_facts(look) for look in looks] for name, looks in columns.items()}
        print_json(record)
        return
    for name, looks in columns.items():
        _print(name, looks)
    click.echo("This was read from rows: it is for your eyes, and is kept nowhere.")
    if draft is not None and from_rows:
        click.echo(f"wrote {draft} from rows: it is confidential; keep it where the rows are")
    elif draft is not None:
        click.echo(
            f"wrote {draft}: names and stored types only; fill it in with the others, then give it to "
            "`fedpower fit` or `study init` with --codebook"
        )


def _drafted(types: list[dict[str, Any]], *, from_rows: bool) -> str:
    head = (_CONFIDENTIAL if from_rows else _PUBLIC) + _HEAD
    lines = [head + f"format = {as_toml(FORMAT)}", "", "[rules]"]
    for column, (rule, hint) in draft_of(types).items():
        lines.append(f"{toml_key(column)} = {as_toml(rule)}{f'  # {hint}' if hint else ''}")
    return "\n".join(lines) + "\n"


def _facts(look: ColumnLook) -> dict[str, Any]:
    names = ("name", "type", "n_rows", "n_missing", "n_odd", "low", "high", "levels", "doubts")
    return {name: plain(getattr(look, name)) for name in names}


def _print(name: str, looks: list[ColumnLook]) -> None:
    title = f"{name}: {looks[0].n_rows if looks else 0} rows of {len(looks)} columns"
    rows = [
        (look.name, look.type, f"{look.n_missing or ''}", _values(look), "; ".join(look.doubts))
        for look in looks
    ]
    headings = ("column", "type", "missing", "values", "to think of")
    print_table(title, headings, rows, numbers=("missing",))


def _values(look: ColumnLook) -> str:
    """Return what a column's cells are, in short."""
    if look.type == "number" and look.low is not None and look.high is not None:
        return f"{number(look.low)} to {number(look.high)}"
    if look.type == "nothing":
        return ""
    if look.levels is None:
        return "many levels"
    if look.type == "date":
        return f"{len(look.levels)} different"
    words = [word if len(word) <= _LONGEST else f"{word[:_LONGEST]}…" for word in look.levels]
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    many = "1 level" if len(words) == 1 else f"{len(words)} levels"
    return f"{many}: {', '.join(words[:_SHOWN])}{more}"
