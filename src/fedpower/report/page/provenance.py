"""Where a result comes from: how to run it again, with which versions, and how to cite it."""

import json
import shlex
from typing import Any

from fedpower.report.page.markup import Markup, element
from fedpower.report.page.privacy import summed_securely
from fedpower.report.page.tables import facts, folded, paragraphs, section, table
from fedpower.report.page.words import count, equals, number, second_of_time

PAPER = """@misc{FP,
  title = {{FedPower}: Privacy-Preserving Distributed Eigenspace Estimation},
  author = {Guo, Xiao and Li, Xiang and Chang, Xiangyu and Wang, Shusen and Zhang, Zhihua},
  note = {the paper this package implements}
}"""
"""As in docs/references.bib."""

SOFTWARE = """@software{{fedpower,
  title = {{fedpower: PCA across organisations that cannot pool their rows}},
  author = {{{{The fedpower authors}}}},
  version = {{{version}}}
}}"""

LONG = 8
"""A list of more numbers than that is told by its length."""


def provenance_section(run: dict[str, Any]) -> Markup:
    """Return the command that gives this result again, versions, terms and BibTeX."""
    citation = f"{PAPER}\n\n{SOFTWARE.format(version=run['versions']['fedpower'])}"
    return section(
        "provenance",
        "Where this comes from",
        element("h3", "Run it again"),
        _rerun(run),
        element("h3", "How to cite"),
        element("pre", element("code", citation)),
        element("h3", "Versions and terms"),
        facts(run["versions"].items(), kind="facts versions"),
        facts(_identities(run), kind="terms"),
        folded("All parameters", _parameters(run["parameters"])),
    )


def _rerun(run: dict[str, Any]) -> list[Markup]:
    if run["command"] is not None:
        return [
            element("pre", element("code", _words(run["command"]))),
            *paragraphs(_elsewhere(run["command"]), _again(run)),
        ]
    if run.get("federation"):
        return paragraphs(
            [
                "Every party keeps its kit and its silo file, and the runner gives ",
                element("code", "fedpower run study.toml"),
                " with the study file whose hash is ",
                element("code", run["federation"]["agreement"]),
                ".",
            ],
            _again(run),
        )
    return [
        element("pre", element("code", _call(run["parameters"]))),
        *paragraphs(_again(run)),
    ]


def _elsewhere(command: list[str]) -> Any:
    """Return what to change in a command whose result is there already; None for one that replaces it."""
    if "--force" in command:
        return None
    options = element("code", "-o"), element("code", "--force")
    return [
        "Give it another ", options[0], ", or ", options[1], ": a result that is there is not replaced "
        "otherwise.",
    ]  # fmt: skip


def _again(run: dict[str, Any]) -> str:
    privacy = run["privacy"]
    if privacy["mode"] == "none":
        return "Exact fits of the same rows give the same result."
    if summed_securely(run):
        asked = equals("ε", privacy["asked_epsilon"])
        return f"A secure sum is asked for afresh: running this again spends {asked} again."
    return (
        "Noise comes from the operating system, so a silo without a ledger adds other noise and spends "
        "again; with the same ledgers, rows and terms the same answers come again and nothing is charged."
    )


def _words(command: list[str]) -> list[Markup]:
    """Return a command as a shell takes it; a line is broken between its words."""
    return [element("span", shlex.quote(word), " ", class_="word") for word in command]


def _call(parameters: dict[str, Any]) -> str:
    """Return the Python that makes the estimator; parameters that are None are left out."""
    given = [
        f"    {key}={_python(value)},\n" for key, value in parameters.items() if value is not None
    ]
    return f"FedPCA(\n{''.join(given)}).fit_silos(silos)"


def _python(value: Any) -> str:
    if value in ("inf", "-inf"):
        return f'float("{value}")'
    if isinstance(value, list) and len(value) > LONG:
        return f"...  # {count(len(value), 'number')}, in run.json"
    return repr(value)


def _identities(run: dict[str, Any]) -> list[tuple[str, Any]]:
    federation = run.get("federation") or {}
    return [
        ("Hash of the terms", element("code", run["study"]["hash"])),
        ("Hash of the agreement", _code(federation.get("agreement"))),
        ("Run", _code(federation.get("run"))),
        ("Started", run["started"] and second_of_time(run["started"])),
        ("Finished", second_of_time(run["finished"])),
    ]


def _code(text: str | None) -> Markup | None:
    return None if text is None else element("code", text)


def _parameters(parameters: dict[str, Any]) -> Markup:
    rows = [
        (element("code", key), element("code", _value(value))) for key, value in parameters.items()
    ]
    return table("Parameters", ["Parameter", "Value"], rows)


def _value(value: Any) -> str:
    if isinstance(value, list) and len(value) > LONG:
        return f"{count(len(value), 'number')}, in run.json"
    if isinstance(value, float):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
