"""`fedpower doctor`: whether the installation is sound, and what is missing."""

import importlib.metadata
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

import fedpower
from fedpower import native
from fedpower.cli import selftests
from fedpower.cli.health import (
    Finding,
    check_extra,
    check_isolation,
    check_packages,
    check_python,
    extras_of,
    requirements,
)

_BROKEN = 1


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Where ledgers are to be kept; tried instead of the folder for temporary files.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def doctor(*, folder: Path | None, as_json: bool) -> int:
    """Look whether fedpower is sound on this machine, and say what is missing and how to get it.

    Packages are held against what fedpower needs, and it does in small what it is for: a fit, noise, a
    ledger. Nothing is kept. The exit status is 0 where all that is there works, and 1 where
    something is broken; an extra that is not installed breaks nothing.
    """
    findings = examine(folder)
    broken = [each for each in findings if each.state == "broken"]
    if as_json:
        overview = {"fedpower": fedpower.__version__, "sound": not broken}
        click.echo(json.dumps({**overview, "findings": [asdict(each) for each in findings]}, indent=2))
    else:
        _print(findings)
        names = ", ".join(each.name for each in broken)
        click.echo(f"Broken: {names}." if broken else "fedpower is sound here.")
    return _BROKEN if broken else 0


def examine(folder: Path | None) -> list[Finding]:
    """Return all findings, in the order in which they are told."""
    try:
        asked = requirements()
    except importlib.metadata.PackageNotFoundError:
        return [
            Finding(
                name="fedpower",
                state="broken",
                detail="its metadata is not there, so what it needs is not known",
                advice="`pip install .` in a copy of the project",
            )
        ]
    findings = [check_python(), check_packages(asked)]
    tests: dict[str, Callable[[], str]] = {
        "matrix products": selftests.blas,
        "exact fit": selftests.exact_fit,
        "noise": selftests.noise,
        "private fit": selftests.private_fit,
        "ledger": lambda: selftests.ledger(folder),
    }
    findings += [_tried(name, test) for name, test in tests.items()]
    found = _tried("compiled loops", selftests.loops)
    findings.append(found if found.detail else _without_loops())
    findings.append(check_isolation())
    extras = {extra: check_extra(extra, asked) for extra in extras_of(asked)}
    findings += extras.values()
    if "torch" in extras and extras["torch"].state == "sound":
        found = _tried("GPU", selftests.device)
        nothing = Finding(
            name="GPU", state="absent", detail="none that PyTorch can use: silos compute on the CPU"
        )
        findings.append(found if found.detail else nothing)
    return findings


def _without_loops() -> Finding:
    return Finding(
        name="compiled loops",
        state="absent",
        detail=native.account(),
        advice="nothing is wrong; for speed, a C compiler and `pip install .` again in a copy of the project",
    )


def _tried(name: str, test: Callable[[], str]) -> Finding:
    """Return what a self-test found; whatever it raises is a finding too."""
    try:
        return Finding(name=name, state="sound", detail=test())
    except Exception as error:  # the doctor reports, whatever it meets
        what = " ".join(str(error).split())
        if isinstance(error, selftests.SelfTestError):
            return Finding(name=name, state="broken", detail=what, advice=error.advice)
        detail = f"{type(error).__name__}: {what}"
        return Finding(name=name, state="broken", detail=detail, advice=selftests.ANEW)


def _print(findings: list[Finding]) -> None:
    try:
        from fedpower.cli.console import console, table  # noqa: PLC0415
    except ImportError:  # the findings say so, and are told without a table
        for each in findings:
            click.echo(" ".join(filter(None, (f"{each.name}: {each.state},", each.detail, each.advice))))
        return
    shown = table(f"fedpower {fedpower.__version__}", "what", "state", "found", "to do")
    for each in findings:
        shown.add_row(each.name, each.state, each.detail, each.advice)
    console().print(shown)
