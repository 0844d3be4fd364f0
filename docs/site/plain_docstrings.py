"""Docstrings and help texts as they are written, for reStructuredText.

There ``|x|`` would be a substitution, ``mean_`` a link and ``T.`` the beginning of a list. Where a
section of attributes lists several in one line, napoleon would take all but the last for a type. A page
that is named by its path becomes a link to it.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_LITERAL = re.compile(r"(``.+?``|`[^`]+`)")
_TRAILING = re.compile(r"(?<![\\\w])(\w*[A-Za-z0-9])_(?!\w)")
_PARAMETER = re.compile(r"(:\w+:\s+(?:\* )?|\s*\* )?(\*\*.+?\*\*) \((.+)\) -- (.*)")
_ENUMERATED = re.compile(r"^(\s*\w)\.(?= |$)")
_OPTION = re.compile(r"(?<![`\w-])(--?[a-z][a-z-]*)(?![\w`])")
_PAGE = re.compile(r"docs/([\w/-]+)\.md")
_SEVERAL = re.compile(r"\w+(, \w+)+( : .*)?")
_NO_SPACE = ",\u200b"
_DOCS = Path(__file__).parents[1]
BEFORE_NAPOLEON, AFTER_NAPOLEON = 400, 600


def setup(app: Sphinx) -> dict[str, Any]:
    """Escape every docstring before and after napoleon reads its sections."""
    app.connect("autodoc-process-docstring", _keep_together, priority=BEFORE_NAPOLEON)
    app.connect("autodoc-process-docstring", _escape, priority=AFTER_NAPOLEON)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _keep_together(*facts: Any) -> None:
    lines: list[str] = facts[-1]  # the rest is what and whose they are
    section = ""
    for place, line in enumerate(lines[:-1]):
        if re.fullmatch(r"-{3,}", lines[place + 1].strip()):
            section = line.strip()
        elif section == "Attributes" and _SEVERAL.fullmatch(line):
            names, colon, kind = line.partition(" : ")
            lines[place] = names.replace(", ", _NO_SPACE) + colon + kind


def _escape(*facts: Any) -> None:
    lines: list[str] = facts[-1]
    for place, line in enumerate(lines):
        if not line.lstrip().startswith(".."):
            lines[place] = _ENUMERATED.sub(r"\1\.", _outside_code(line, _escaped))
    lines[:] = [part for line in lines for part in _name_above(line)]


def _name_above(line: str) -> list[str]:
    """Return a parameter's line as two: its name and type, and what it means."""
    found = _PARAMETER.fullmatch(line)
    if not found:
        return [line]
    before, name, kind, meaning = found.groups(default="")
    return [f"{before}{name} : {kind}", "", " " * len(before) + meaning]


def _escaped(text: str) -> str:
    return _PAGE.sub(_linked, _TRAILING.sub(r"\1\_", text.replace("|", r"\|")))


def as_code(help_text: str) -> str:
    """Return a help text with its options as code, for reStructuredText."""
    return _outside_code(help_text, lambda text: _OPTION.sub(r"``\1``", _escaped(text.replace("*", r"\*"))))


def _outside_code(line: str, change: Callable[[str], str]) -> str:
    parts = _LITERAL.split(line)
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


def _linked(found: re.Match[str]) -> str:
    """Return a link in place of a page's path; a path that is no page stays as it is."""
    page = found[1]
    return f":doc:`/{page}`" if (_DOCS / f"{page}.md").is_file() else found[0]
