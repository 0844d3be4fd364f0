"""Docstrings as they are written, for reStructuredText: ``|x|`` is a norm and ``mean_`` an attribute.

reStructuredText would take the first for a substitution and the second for a link.
"""

import re
from typing import Any

from sphinx.application import Sphinx

_LITERAL = re.compile(r"(``.+?``|`[^`]+`)")
_TRAILING = re.compile(r"(?<![\\\w])(\w*[A-Za-z0-9])_(?!\w)")
AFTER_NAPOLEON = 600


def setup(app: Sphinx) -> dict[str, Any]:
    """Escape both in every docstring, once napoleon has read its sections."""
    app.connect("autodoc-process-docstring", _escape, priority=AFTER_NAPOLEON)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _escape(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    del app, what, name, obj, options
    for place, line in enumerate(lines):
        if not line.lstrip().startswith(".."):
            parts = _LITERAL.split(line)
            parts[::2] = [_TRAILING.sub(r"\1\\_", part.replace("|", r"\|")) for part in parts[::2]]
            lines[place] = "".join(parts)
