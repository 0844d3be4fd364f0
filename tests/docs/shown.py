"""Whether an output is the one that a page shows."""

import re

_NUMBER = r"[+-]?\d[\d.,:e+-]*"
_HASH = r"\b(?=[a-f]*\d)[0-9a-f]{12,}\b"
_VARIES = re.compile(rf"{_HASH}|{_NUMBER}")
_RUNS = ((re.compile(r"[─━]+"), "─"), (re.compile(r"[█░]+"), "█"), (re.compile(r"\s+"), " "))
_ANY_LINES = "..."


def is_shown(shown: str, got: str, *, numbers_vary: bool = False) -> bool:
    """Return whether ``got`` is what a page shows.

    Spaces, rules and bars may have another length. ``...`` stands for anything within a line, and
    alone on a line for any lines. Where numbers vary, a number or a hash stands for any other.
    """
    pattern = "".join(_line_pattern(line, numbers_vary) for line in _lines(shown))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(got))) is not None


def _lines(text: str) -> list[str]:
    tidied = []
    for line in text.splitlines():
        for run, single in _RUNS:
            line = run.sub(single, line)  # noqa: PLW2901  (each kind of run in turn)
        if line.strip():
            tidied.append(line.strip())
    return tidied


def _line_pattern(line: str, numbers_vary: bool) -> str:
    if line == _ANY_LINES:
        return r"(?:.*\n)*"
    return ".*".join(_part_pattern(part, numbers_vary) for part in line.split("...")) + r"\n"


def _part_pattern(part: str, numbers_vary: bool) -> str:
    if not numbers_vary:
        return re.escape(part)
    made, end = "", 0
    for found in _VARIES.finditer(part):
        made += re.escape(part[end : found.start()])
        made += _HASH if re.fullmatch(_HASH, found[0]) else _NUMBER
        end = found.end()
    return made + re.escape(part[end:])
