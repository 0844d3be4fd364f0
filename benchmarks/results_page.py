"""Write ``docs/results.md`` from ``benchmarks/results`` and ``docs/reproduction``; ``--check`` compares.

No number on the page is typed: tables, small print and the numbers in the prose come from
the files.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import markdown, read_json
from benchmarks.measuring import distinct, mean
from benchmarks.render import kept, section, settle, small_print

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
        DOCS / "results.md", lambda _: page(REPRODUCTION), description=__doc__, command="make docs-results"
    )


def page(reproduction: Path) -> str:
    """Return the whole page; what has not been reproduced is left out and said so."""
    real, peers, tables = (kept(name) for name in ("accuracy_real", "accuracy_peers", "localpower_tables"))
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
    return read_json(file) if file.exists() else None


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
    captions: dict[str, str] = read_json(file)
    shown = [f"![{name}]({folder.name}/{name}.svg)\n\n*{caption}*" for name, caption in captions.items()]
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


Rows = Sequence[dict[str, Any]]

USUAL = 1.0
"""The ε that a single sentence is about."""

LOST = 0.5
"""An error sin θ_k above this means that a direction of the subspace is lost."""


def on_real_data(found: dict[str, Any]) -> list[str]:
    """Return what the private fits on real data say."""
    rows: Rows = found["measured"]
    sets = distinct(rows, "data")
    shares = {
        method: [mean(rows, "captured", method=method, epsilon=USUAL, data=each) for each in sets]
        for method in distinct(rows, "method")
    }
    reported = ", ".join(
        f"`{method}` {_range(each)}" for method, each in shares.items() if method != "fedpower"
    )
    by_split = [
        abs(
            mean(rows, "captured", split="at random", **where)
            - mean(rows, "captured", split="by label", **where)
        )
        for each in sets
        for epsilon in distinct(rows, "epsilon")
        for where in [{"method": "fedpower", "data": each, "epsilon": epsilon}]
    ]
    lost = {
        epsilon: [
            each for each in sets if mean(rows, "error", method="fedpower", epsilon=epsilon, data=each) > LOST
        ]
        for epsilon in distinct(rows, "epsilon")
    }
    return [
        f"On {len(sets)} real data sets at ε = {USUAL:g}, fedpower's default captures "
        f"{_range(shares['fedpower'])} of the variance that the exact subspace captures ({reported}).",
        "Whether silos are alike or hold different labels makes no difference to the default: with the "
        f"same noise, captured variance changes by {max(by_split):.1e} at most.",
        "It is no magic: a direction of the subspace is lost (mean sin θ_k above "
        f"{LOST:g}) " + "; ".join(_lost_at(epsilon, each) for epsilon, each in lost.items()) + ".",
    ]


def beside_peers(found: dict[str, Any]) -> list[str]:
    """Return what the comparison says."""
    rows: Rows = found["measured"]["fits"]
    sets = distinct(rows, "data")
    ratios = [
        mean(rows, "error", method="fedpower", epsilon=USUAL, data=each)
        / mean(rows, "error", method="Analyze-Gauss", epsilon=USUAL, data=each)
        for each in sets
    ]
    better = [
        each
        for each in sets
        if mean(rows, "captured", method="fedpower", epsilon=USUAL, data=each)
        > mean(rows, "captured", method="exponential mechanism", epsilon=USUAL, data=each)
    ]
    return [
        "The price of trusting nobody: a curator who holds all rows (Analyze-Gauss) is more accurate "
        f"at the same ε and δ; fedpower's error is {min(ratios):.2g} to {max(ratios):.2g} times the "
        f"curator's at ε = {USUAL:g}. (With m equal silos its noise is √m times as large.)",
        f"At ε = {USUAL:g} fedpower, which trusts nobody and allows a δ, captures more than a curator "
        f"with pure ε (exponential mechanism) on {len(better)} of {len(sets)} data sets: "
        f"{', '.join(better) or 'none'}.",
        *(_finished(rows, sets, peer, found) for peer in ("OpenDP", "diffprivlib")),
    ]


def with_secure_sums(found: dict[str, Any]) -> list[str]:
    """Return what summing securely is worth."""
    columns, rows = found["table"]["columns"], found["table"]["rows"]
    ratios = [float(row[columns.index("secure / curator")]) for row in rows]
    models = " and ".join(dict.fromkeys(row[columns.index("model")] for row in rows))
    return [
        'That price need not be paid: with a secure sum (`aggregation="secure"`) the error is '
        f"{min(ratios):.3g} to {max(ratios):.3g} times the curator's on {models} "
        f"at {len(rows) // len(set(models.split(' and ')))} values of ε, with nobody trusted "
        "([how](secure-aggregation.md))."
    ]


def beside_localpower(found: dict[str, Any]) -> list[str]:
    """Return what the noise-free protocol says."""
    rows: Rows = found["measured"]
    methods = [key for key in rows[0] if key not in ("data", "split")]
    ours = next(method for method in methods if method.startswith("FedPCA"))
    worst = {method: max(statistics.mean(row[method]) for row in rows) for method in methods}
    reported = ", ".join(f"{method} {worst[method]:.1e}" for method in methods if method != ours)
    return [
        f"Without noise, in LocalPower's protocol, the default's largest mean error over all data and "
        f"splits is {worst[ours]:.1e}; the others' largest: {reported}."
    ]


def _finished(rows: Rows, sets: Sequence[str], peer: str, found: dict[str, Any]) -> str:
    """Return how far a library's own PCA came, and how it did where it finished."""
    epsilons, seeds = found["settings"]["epsilons"], len(found["settings"]["seeds"])
    mine = [row for row in rows if row["method"] == peer]
    reported = []
    for each in sets:
        for epsilon in epsilons:
            share = mean(mine, "captured", data=each, epsilon=epsilon)
            if not math.isnan(share):
                ours = mean(rows, "captured", method="fedpower", data=each, epsilon=epsilon)
                reported.append(f"{each} at ε = {epsilon:g}: {share:.2f} against fedpower's {ours:.2f}")
    return (
        f"{peer}'s PCA finished {len(mine)} of {len(sets) * len(epsilons) * seeds} fits in the "
        f"{found['settings']['limit_s']:g} core seconds or {found['settings']['limit_clock_s']:g} "
        "seconds on the clock it had for a data set"
        + (f" (captured variance on {'; '.join(reported)})." if reported else ".")
    )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _lost_at(epsilon: float, sets: Sequence[str]) -> str:
    return f"at ε = {epsilon:g} on {', '.join(sets) or 'none'}"


if __name__ == "__main__":
    main()
