"""What docs/results.md says beside tables: findings in sentences, claims and figures of the reproduction.

No number is typed: all are computed from ``results`` and from ``docs/reproduction``.
"""

import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import runner
from benchmarks.runner import HERE, distinct, having, kept, markdown, read_json

REPRODUCTION = Path(__file__).parents[1] / "docs" / "reproduction"


DOCUMENTS = (HERE / "README.md", HERE.parent / "docs" / "results.md")
PLACE = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PLACES: dict[str, Callable[[], str]] = {}
"""By name: what else fills a marked place of a document, beside the results of a case."""


def place(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    def register(write: Callable[[], str]) -> Callable[[], str]:
        PLACES[name] = write
        return write

    return register


def render(*, check: bool = False, documents: Sequence[Path] = DOCUMENTS) -> list[str]:
    stale = []
    for path in documents:
        old = path.read_text(encoding="utf-8")
        new = PLACE.sub(lambda found: f"{found[1]}\n{section(found[2])}\n\n{found[3]}", old)
        if new != old:
            stale.append(path.name)
            if not check:
                path.write_text(new, encoding="utf-8")
    return stale


def section(name: str) -> str:
    if name in PLACES:
        return PLACES[name]()
    if not (runner.RESULTS / f"{name}.json").exists():
        return f"Not measured yet: `python -m benchmarks {name}`."
    found = kept(name)
    more = [f"{each['title']}\n\n{markdown(each['columns'], each['rows'])}" for each in found.get("more", ())]
    settings = ", ".join(f"{key}: {_brief(value)}" for key, value in found["settings"].items())
    facts = ", ".join(f"{key}: {value}" for key, value in found["machine"].items())
    table = markdown(found["table"]["columns"], found["table"]["rows"])
    return "\n\n".join([table, *found["notes"], *more, f"<sub>{settings}. {facts}.</sub>"])


def _brief(value: object) -> str:
    if isinstance(value, list) and len(value) > 3 and value == list(range(len(value))):
        return f"0 to {value[-1]}"
    return str(value)


@place("findings")
def findings() -> str:
    sentences = [
        *on_claims(_claims(REPRODUCTION)),
        *on_real_data(kept("accuracy_real")["measured"]),
        *beside_peers(kept("accuracy_peers")),
        with_secure_sums(kept("secure")),
        beside_localpower(kept("localpower_tables")["measured"]),
    ]
    return "\n".join(f"- {sentence}" for sentence in sentences)


@place("claims")
def claims(folder: Path = REPRODUCTION) -> str:
    columns = ["claim", "whose", "what it says", "where", "figure", "holds", "what was found"]
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
        for claim in _claims(folder)
    ]
    return markdown(columns, rows) if rows else "The paper's figures and claims: `make reproduce` makes them."


@place("figures")
def figures(folder: Path = REPRODUCTION) -> str:
    file = folder / "captions.json"
    captions: dict[str, str] = read_json(file) if file.exists() else {}
    shown = [f"![{name}]({folder.name}/{name}.svg)\n\n*{caption}*" for name, caption in captions.items()]
    return "\n\n".join(shown)


def _claims(folder: Path) -> list[dict[str, Any]]:
    file = folder / "claims.json"
    found: list[dict[str, Any]] = read_json(file)["claims"] if file.exists() else []
    return found


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def on_claims(claims: Sequence[dict[str, Any]]) -> list[str]:
    sentences = []
    for whose, name in (("paper", "the paper"), ("fedpower", "fedpower")) if claims else ():
        holds = [claim["holds"] for claim in claims if claim["whose"] == whose]
        sentences.append(f"Of {len(holds)} claims of {name} that were put to the test, {sum(holds)} hold.")
    return sentences


USUAL = 1.0
"""The ε that a single sentence is about."""

LOST = 0.5
"""An error sin θ_k above this means that a direction of the subspace is lost."""


def _means(rows: Any, value: str, *keys: str, **where: Any) -> dict[Any, float]:
    groups: dict[Any, list[float]] = {}
    for row in having(rows, **where):
        groups.setdefault(tuple(row[key] for key in keys), []).append(row[value])
    return {key if len(keys) > 1 else key[0]: statistics.fmean(found) for key, found in groups.items()}


def on_real_data(rows: Any) -> list[str]:
    shares = {
        method: list(_means(rows, "captured", "data", method=method, epsilon=USUAL).values())
        for method in distinct(rows, "method")
    }
    ours = _range(shares.pop("fedpower"))
    reported = ", ".join(f"`{method}` {_range(each)}" for method, each in shares.items())
    alike, by_label = (
        _means(rows, "captured", "data", "epsilon", method="fedpower", split=split)
        for split in ("at random", "by label")
    )
    errors, lost = _means(rows, "error", "epsilon", "data", method="fedpower"), []
    for epsilon in distinct(rows, "epsilon"):
        sets = [data for (at, data), error in errors.items() if at == epsilon and error > LOST]
        lost.append(f"at ε = {epsilon:g} on {', '.join(sets) or 'none'}")
    return [
        f"On {len(distinct(rows, 'data'))} real data sets at ε = {USUAL:g}, fedpower's default captures "
        f"{ours} of the variance that the exact subspace captures ({reported}).",
        "Whether silos are alike or hold different labels makes no difference to the default: with the "
        "same noise, captured variance changes by "
        f"{max(abs(alike[key] - by_label[key]) for key in alike):.1e} at most.",
        "It is no magic: a direction of the subspace is lost (mean sin θ_k above "
        f"{LOST:g}) {'; '.join(lost)}.",
    ]


def beside_peers(found: dict[str, Any]) -> list[str]:
    rows = found["measured"]["fits"]
    errors = _means(rows, "error", "method", "data", epsilon=USUAL)
    captured = _means(rows, "captured", "method", "data", epsilon=USUAL)
    sets = distinct(rows, "data")
    ratios = [errors["fedpower", data] / errors["Analyze-Gauss", data] for data in sets]
    better = [each for each in sets if captured["fedpower", each] > captured["exponential mechanism", each]]
    return [
        "The price of trusting nobody: a curator who holds all rows (Analyze-Gauss) is more accurate at "
        f"the same ε and δ; fedpower's error is {min(ratios):.2g} to {max(ratios):.2g} times the curator's "
        f"at ε = {USUAL:g}. (With m equal silos its noise is √m times as large.)",
        f"At ε = {USUAL:g} fedpower, which trusts nobody and allows a δ, captures more than a curator with "
        f"pure ε (exponential mechanism) on {len(better)} of {len(sets)} data sets: "
        f"{', '.join(better) or 'none'}.",
        *(_finished(rows, len(sets), peer, found["settings"]) for peer in ("OpenDP", "diffprivlib")),
    ]


def _finished(rows: Any, sets: int, peer: str, settings: dict[str, Any]) -> str:
    ours = _means(rows, "captured", "data", "epsilon", method="fedpower")
    reported = "; ".join(
        f"{data} at ε = {epsilon:g}: {share:.2f} against fedpower's {ours[data, epsilon]:.2f}"
        for (data, epsilon), share in _means(rows, "captured", "data", "epsilon", method=peer).items()
    )
    asked = sets * len(settings["epsilons"]) * len(settings["seeds"])
    return (
        f"{peer}'s PCA finished {len(having(rows, method=peer))} of {asked} fits in the "
        f"{settings['limit_s']:g} core seconds or {settings['limit_clock_s']:g} seconds "
        f"on the clock it had for a data set{f' (captured variance on {reported})' * bool(reported)}."
    )


def with_secure_sums(found: dict[str, Any]) -> str:
    columns, rows = found["table"]["columns"], found["table"]["rows"]
    ratios = [float(row[columns.index("secure / curator")]) for row in rows]
    models = list(dict.fromkeys(row[columns.index("model")] for row in rows))
    return (
        'That price need not be paid: with a secure sum (`aggregation="secure"`) the error is '
        f"{min(ratios):.3g} to {max(ratios):.3g} times the curator's on {' and '.join(models)} at "
        f"{len(rows) // len(models)} values of ε, with nobody trusted ([how](officer/secure-aggregation.md))."
    )


def beside_localpower(rows: Any) -> str:
    methods = [key for key in rows[0] if key not in ("data", "split")]
    ours = next(method for method in methods if method.startswith("FedPCA"))
    worst = {method: max(statistics.mean(row[method]) for row in rows) for method in methods}
    reported = ", ".join(f"{method} {worst[method]:.1e}" for method in methods if method != ours)
    return (
        "Without noise, in LocalPower's protocol, the default's largest mean error over all data and "
        f"splits is {worst[ours]:.1e}; the others' largest: {reported}."
    )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"
