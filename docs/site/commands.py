"""One page per command in ``docs/reference/cli``, written from the code before the site is built."""

import inspect
import re
import shutil
from pathlib import Path
from typing import Any

import click
from plain_docstrings import as_code
from sphinx.application import Sphinx

from fedpower.cli import _GROUPS as GROUPS
from fedpower.cli import main
from fedpower.cli.options import _HEADINGS as HEADINGS


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages when a build begins."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference" / "cli"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    top, listing = click.Context(main, info_name="fedpower"), []
    for heading, commands in GROUPS.items():
        listing += [heading, "-" * len(heading), "", ".. list-table::", "   :widths: 22 78", ""]
        for name, (*_, line) in commands.items():
            listing += [f"   * - :doc:`fedpower {name} <cli/{name}>`", f"     - {as_code(line)}"]
            command = main.get_command(top, name)
            assert command is not None
            (folder / f"{name}.rst").write_text("\n".join(_page(command, top, "=")), encoding="utf-8")
        listing += ["", ".. toctree::", "   :hidden:", "", *(f"   cli/{name}" for name in commands), ""]
    (folder / "commands.txt").write_text("\n".join(listing), encoding="utf-8")


def _page(command: click.Command, parent: click.Context, underline: str) -> list[str]:
    """Return the page of a command, or its section on the page of its group."""
    context = click.Context(command, info_name=command.name, parent=parent)
    path = context.command_path
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    lines = [
        path,
        underline * len(path),
        "",
        *_prose(command.help),
        ".. code-block:: console",
        "",
        f"   $ {usage}",
        "",
    ]
    by_heading: dict[str, list[str]] = {}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        name, text = record or ("", "")
        if text and name != "--help":
            group = HEADINGS[getattr(param, "group", "main")]
            by_heading.setdefault(group, []).extend([f".. option:: {name}", "", f"   {as_code(text)}", ""])
    lines += [f".. program:: {path}", ""]
    for heading in sorted(by_heading, key=list(HEADINGS.values()).index):
        lines += [f".. rubric:: {heading}", "", *by_heading[heading]]
    lines += _prose(command.epilog)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            lines += _page(child, context, "-")
    return lines


def _prose(text: str | None) -> list[str]:
    """Return the paragraphs of a help text; what click keeps as it is becomes a literal block."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text or "")):
        kept, _, body = paragraph.rpartition("\b\n")
        lines += (
            ["::", "", *(f"   {line}" for line in body.splitlines()), ""]
            if kept or "\b" in paragraph
            else [*as_code(paragraph).splitlines(), ""]
        )
    return lines
