"""How a study stands: facts for programs, and the same in words for a terminal and a page."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedpower.federation.study_file import StudyFile
from fedpower.report.text import MISSING, human_bytes, measured

Table = tuple[list[str], list[list[str]]]  # headings and rows
_LAST_ROUNDS = 20  # are listed
_WAITS = {"absent": "connect", "waiting": "approve", "asked": "answer"}  # by where a proposal stands
_DID = {"answered": "answered", "refused": "refused", "silent": "no answer"}  # by key of a round


def study_facts(study: StudyFile, status: Mapping[str, Any], last: str | None) -> dict[str, Any]:
    """Return how a study stands, from what its coordinator reports of it and of its last run."""
    run, result = status["run"], last if status["result"] else None
    if run is not None and run["study"] != study.digest:
        run = None
    if run is not None:
        result = run["run"] if run.get("done") else None
    silos = {name: _silo(name, name in status["connected"], run) for name in study.silos}
    return {
        "study": study.digest,
        "name": study.name,
        "coordinator": f"{study.host}:{study.port}",
        "silos": silos,
        "waiting": {
            what: [name for name, silo in silos.items() if silo["waits"] == what] for what in _WAITS.values()
        },
        "run": run,
        "result": result,  # the run that has one
    }


def _silo(name: str, connected: bool, run: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return how a silo stands in a run: what it decided and answered, and what it is waited for to do."""
    if run is None:
        blank = dict.fromkeys(("approval", "reason", "round", "waits"))
        return {"connected": connected, **blank}
    standing, current = run["standings"][name], run["open"] or (run["rounds"] or [{}])[-1]
    did = next((did for key, did in _DID.items() if name in current.get(key, ())), None)
    waits = None
    if "done" not in run and not run["approved"]:
        waits = _WAITS.get(standing["state"])
    elif "done" not in run and name in run["waiting_for"]:
        did, waits = "waiting", "answer" if connected else "connect"
    return {
        "connected": connected,
        "approval": standing["state"],
        "reason": standing.get("reason", ""),
        "round": did,
        "waits": waits,
    }


def in_words(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts as a terminal and a page show them."""
    run = facts["run"]
    waiting = who_waits(facts["waiting"])
    level, sentence = _stage(facts, waiting)
    return {
        "level": level,
        "sentence": sentence,
        "summary": {} if run is None else _summary(run, waiting),
        "silos": _silos(facts),
        "rounds": _rounds([] if run is None else run["rounds"], list(facts["silos"])),
    }


def who_waits(waiting: Mapping[str, Sequence[str]]) -> str:
    """Return who is waited for, from the names of silos by what they have to do."""
    return " and ".join(f"{', '.join(names)} to {what}" for what, names in waiting.items() if names)


def _stage(facts: Mapping[str, Any], waiting: str) -> tuple[str, str]:
    """Return whether all is well, as pages judge it, and how far the study is, in a sentence."""
    run = facts["run"]
    if run is None:
        if facts["result"] is None:
            return "", "No run of this study is in progress."
        return "good", "The last run is complete."
    if run.get("done"):
        return "good", "The run is complete."
    if "done" in run:
        return "bad", f"The run ended without a result: {run['reason']}."
    if run["approved"]:
        return "", "The study is approved, and rounds are in progress."
    return "care", f"The study waits for {waiting}." if waiting else "The study is about to begin."


def _summary(run: Mapping[str, Any], waiting: str) -> dict[str, str]:
    """Return what else there is to know about a run and its open round."""
    opened, summary = run["open"], {"run": run["run"], "rounds completed": f"{len(run['rounds'])}"}
    if opened is None:
        return summary
    left = opened["seconds_left"]
    return summary | {
        "open round": f"{opened['round']} ({measured(opened['kind'])})",
        "open for": f"{opened['seconds_open']:.0f} s",
        "time left": MISSING if left is None else f"{left:.0f} s",
        "waiting for": waiting or "nobody",
    }


def _silos(facts: Mapping[str, Any]) -> Table:
    rows = []
    for name, silo in facts["silos"].items():
        decided = MISSING if silo["approval"] in (None, "absent") else silo["approval"]
        reason = f": {silo['reason']}" if silo["reason"] else ""
        connected = "yes" if silo["connected"] else "no"
        rows.append([name, connected, f"{decided}{reason}", silo["round"] or MISSING])
    return ["silo", "connected", "approval", "this round"], rows


def _rounds(rounds: list[dict[str, Any]], silos: list[str]) -> Table:
    rows = []
    for closed in rounds[: -_LAST_ROUNDS - 1 : -1]:
        named = [", ".join(name for name in silos if name in closed[key]) for key in ("answered", "silent")]
        rows.append([f"{closed['round']}", measured(closed["kind"]), *named, human_bytes(closed["bytes_up"])])
    return ["round", "question", "answered", "no answer", "received"], rows
