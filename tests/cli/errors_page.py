"""Writes docs/reference/errors.md from the table of wrong uses; run it after a change of either."""

import shlex
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
HEAD = """# Errors, and what to do about them

Every command ends with status 0 when all is well and with 2 when it refuses something: one sentence says
what must hold, what it got and what to do; nothing is written and nothing is charged. After Ctrl-C the
status is 130; it is 1 when the fault is fedpower's own, or when an audit finds a violation. `--traceback`
shows where an error arose. In Python the same sentences are those of `fedpower.errors.FedpowerError`, a
`ValueError`, with the names of parameters in place of options; one about a parameter has its parts as
`parameter`, `must`, `got` and `advice`.

With `--json` too a refusal is that sentence on stderr and status 2, and stdout stays empty. A command
whose reader has gone (`| head`) ends with 141, without a word.

The tests do each of these and compare the sentence; `...` stands for what differs between two runs.
"""


def page() -> str:
    """Return the page."""
    from wrong_uses import GROUPS

    parts = [HEAD]
    for group, uses in GROUPS.items():
        parts.append(f"\n## {group}\n\n| | The command | What it says |\n|---|---|---|\n")
        for name, use in uses.items():
            words = shlex.join(["fedpower", *map(str, use.words)]).replace("|", "\\|")
            said = use.sentence.replace("|", "\\|").replace("<", "\\<")
            parts.append(f"| {name} | `{words}` | {said} |\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    PAGE.write_text(page(), encoding="utf-8")
