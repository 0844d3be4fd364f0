"""Write ``docs/results.md`` from ``benchmarks/results`` and ``docs/reproduction``; ``--check`` compares.

No number on the page is typed: tables and small print come from the files, prose from `takeaways`.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.common import markdown
from benchmarks.render import kept, section, settle, small_print
from benchmarks.takeaways import beside_localpower, beside_peers, on_real_data, with_secure_sums

DOCS = Path(__file__).parents[1] / "docs"
REPRODUCTION = DOCS / "reproduction"

OPENING = """# Results

How accurate fedpower is: beside the paper it began with, on real data, beside its peers. This page is
written by `make docs-results` from files that were measured; every number on it, in prose too, is
computed from them."""

REAL = """## Real data

Each set is split among its silos at random and by label (sorted by label and cut into equal parts).
`fedpower` is the library with every default, `step` noises every step's product under exact
accounting, `paper` is the paper's method with its noise as printed [FP §5, Thm 2]. Row bounds, scales
and centres are public: see the last table. The picture shows the splits by label, means over seeds
with the range that the seeds span."""

PEERS = """## Beside peers

The same rows, bounded to norm 1, the same random splits, the same ε, and the same δ where there is
one. What differs is whom one has to trust: OpenDP, diffprivlib, Analyze-Gauss [DTTZ14] and the
exponential mechanism [ADKMV19] need one place that holds all rows; fedpower and the paper's method
add noise before anything leaves a silo; UDA and WDA protect nothing."""

LOCALPOWER = """## LocalPower's protocol

Without noise, as the ICML paper's code does it, and scored alike for every method."""

RERUN = """## Run it again

Every target does its own set-up.

| command | what it makes |
|---|---|
| `make bench-accuracy` | real data, peers, LocalPower's protocol: JSON, pictures and this page |
| `make bench` | the tables of `benchmarks/README.md`, a9a in full among them |
| `make reproduce` | the paper's figures and claims |
| `make docs-results` | this page, from the files that are there |"""


def main() -> None:
    """Rewrite or check the page."""
    settle(
        DOCS / "results.md",
        lambda _: page(REPRODUCTION),
        description=__doc__,
        command="make docs-results",
    )


def page(reproduction: Path) -> str:
    """Return the whole page; what has not been reproduced is left out and said so."""
    real, peers, tables = (
        kept(name) for name in ("accuracy_real", "accuracy_peers", "localpower_tables")
    )
    claims = _claims(reproduction)
    reported = [
        *_told_by_claims(claims),
        *on_real_data(real),
        *beside_peers(peers),
        *with_secure_sums(kept("secure")),
        *beside_localpower(tables),
    ]
    parts = [
        OPENING,
        "**What to take from it**\n\n" + "\n".join(f"- {sentence}" for sentence in reported),
        _claims_section(claims),
        *_figures(reproduction),
        REAL,
        _picture("accuracy-real", "Variance lost against ε on real data, silos split by label"),
        _left_out(real) + section("accuracy_real").strip(),
        PEERS,
        _picture("accuracy-peers", "Variance lost against ε, fedpower and its peers"),
        _left_out(peers) + section("accuracy_peers").strip(),
        LOCALPOWER,
        _left_out(tables) + section("localpower_tables").strip(),
        "a9a in full, with schedules, sketches and the ICML paper's own scoring:",
        section("a9a_localpower").strip(),
        "Model I at the paper's size, by noise mode [FP §5]:",
        _short_section("model1_modes"),
        RERUN,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claims(folder: Path) -> dict[str, Any] | None:
    """Return the claims and what became of them, or None where nothing was reproduced."""
    file = folder / "claims.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _told_by_claims(claims: dict[str, Any] | None) -> list[str]:
    if claims is None:
        return []
    reported = []
    for whose, name in (("paper", "the paper"), ("fedpower", "fedpower")):
        mine = [claim for claim in claims["claims"] if claim["whose"] == whose]
        held = sum(claim["holds"] for claim in mine)
        reported.append(f"Of {len(mine)} claims of {name} that were put to the test, {held} hold.")
    return reported


def _claims_section(claims: dict[str, Any] | None) -> str:
    if claims is None:
        return "## Claims\n\nThe paper's figures and claims: `make reproduce` makes them."
    rows = [
        [
            claim["id"],
            claim["whose"],
            _cell(claim["sentence"]),
            claim.get("locus", claim.get("where", "")),
            claim["figure"],
            "yes" if claim["holds"] else "**no**",
            _cell(claim["explanation"]),
        ]
        for claim in claims["claims"]
    ]
    columns = ["claim", "whose", "what it says", "where", "figure", "holds", "what was found"]
    return "## Claims, the paper's and ours\n\n" + markdown(columns, rows)


def _figures(folder: Path) -> list[str]:
    """Return every reproduced figure with its caption."""
    file = folder / "captions.json"
    if not file.exists():
        return []
    captions: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    shown = [
        f"![{name}]({folder.name}/{name}.svg)\n\n*{caption}*" for name, caption in captions.items()
    ]
    return ["## Figures", *shown]


def _left_out(found: dict[str, Any]) -> str:
    """Return a line for each data set that was not to be had."""
    return "".join(f"{sentence}\n\n" for sentence in found["settings"]["left_out"])


def _short_section(name: str) -> str:
    """Return a benchmark's first table and its small print."""
    found = kept(name)
    table = markdown(found["table"]["columns"], found["table"]["rows"])
    return f"{table}\n\n{small_print(found)}"


def _picture(name: str, words: str) -> str:
    return f"![{words}]({name}.svg)"


def _cell(text: str) -> str:
    """Return text that does not end a table's cell."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()
