"""The pages of the documentation, and the blocks that a reader could run.

What a comment right before a block says about it:

- ``<!-- file: NAME -->``: the block is a file of that name, for the blocks after it;
- ``<!-- numbers vary: WHY -->``: numbers in the output shown are from another run;
- ``<!-- ends with 2 -->``: the last command is refused;
- ``<!-- run by make test-pages -->``: it needs servers, which that target has;
- ``<!-- not run: WHY -->``: it runs nowhere, for a reason that `test_pages.py` knows.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted(str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
SHELL, PYTHON, OUTPUT = "console", "python", "text"

_REMARK = re.compile(r"<!--\s*(file|numbers vary|ends with|run by|not run)\b:?\s*(.*?)\s*-->")
_PROMPT = "$ "


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: where it stands, what it holds, and the remarks before it."""

    page: str
    line: int
    language: str
    text: str
    remarks: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs_here(self) -> bool:
        return not {"not run", "run by"} & set(self.remarks)

    def commands(self) -> list[tuple[str, str]]:
        """Return each command of a console block with the output shown under it."""
        found: list[list[list[str]]] = []
        continued = False
        for line in self.text.splitlines():
            if line.startswith(_PROMPT):
                found.append([[line.removeprefix(_PROMPT)], []])
            elif found:
                found[-1][0 if continued else 1].append(line)
            else:
                raise AssertionError(f"{self.place}: a console block must begin with `$ `")
            continued = line.endswith("\\") and (line.startswith(_PROMPT) or continued)
        return [("\n".join(command), "\n".join(output)) for command, output in found]


@cache
def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    remarks: dict[str, str] = {}
    for token in MarkdownIt("commonmark").parse((ROOT / page).read_text(encoding="utf-8")):
        if token.type == "html_block":
            remarks |= dict(_REMARK.findall(token.content))
        elif token.type == "fence":
            assert token.map is not None
            found.append(
                Block(
                    page=page,
                    line=token.map[0] + 1,
                    language=token.info.strip().split(" ")[0],
                    text=token.content,
                    remarks=remarks,
                )
            )
            remarks = {}
        else:
            assert not remarks, f"{page}: a remark must stand right before its block: {remarks}"
    return found
