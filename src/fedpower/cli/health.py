"""Which packages fedpower finds here: against what it needs, and for each of its extras."""

import importlib.metadata
import platform
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from packaging.requirements import Requirement as _Line
from packaging.specifiers import SpecifierSet

from fedpower.errors import installing
from fedpower.federation.isolation import Isolation, available, describe

NAME = "fedpower"
MODULES = {"scikit-learn": "sklearn"}
"""Packages that are not imported by their own name."""

_PURPOSES = {
    "plot": "pictures of results",
    "flare": "federations of separate processes",
    "sql": "silos that are queries on SQLite or PostgreSQL",
    "secure": "secure sums",
    "torch": "silos on a GPU",
    "dask": "silos spread over Dask's workers",
    "h5ad": "cells by genes in .h5ad files",
    "pgen": "genotypes in .pgen files",
    "onnx": "results as ONNX graphs",
}
NOT_FOR_USERS = ("dev",)
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one look found: what is ``broken`` is there and fails, what is ``absent`` is optional."""

    name: str
    state: Literal["sound", "absent", "broken"]
    detail: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A package that fedpower asks for: its name, the bounds on its version, and for which extra."""

    package: str
    bounds: str
    extra: str | None

    @property
    def module(self) -> str:
        """What it is imported by."""
        return MODULES.get(self.package, self.package.replace("-", "_"))

    @property
    def version(self) -> str | None:
        """The version that is installed; None where it is not."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


def requirements() -> list[Requirement]:
    """Return what fedpower's own metadata asks for on this system."""
    extras = importlib.metadata.metadata(NAME).get_all("Provides-Extra") or []
    lines = [_Line(line) for line in importlib.metadata.requires(NAME) or ()]
    found = [(line, _asked_for(line, extras)) for line in lines]
    return [
        Requirement(package=line.name, bounds=str(line.specifier), extra=extra or None)
        for line, extra in found
        if extra is not None
    ]


def _asked_for(line: _Line, extras: list[str]) -> str | None:
    """Return the first extra that asks for a package, empty where all do; None on other systems."""
    marker = line.marker
    wanted = (each for each in ("", *extras) if marker is None or marker.evaluate({"extra": each}))
    return next(wanted, None)


def within(version: str, bounds: str) -> bool:
    """Return whether a version is within bounds such as ``>=2.0,<3``; one before a release may be."""
    return SpecifierSet(bounds).contains(version, prereleases=True)


def check_python() -> Finding:
    """Return whether this Python is one that fedpower is for."""
    version, needed = (platform.python_version(), importlib.metadata.metadata(NAME)["Requires-Python"])
    sound = within(version, needed)
    return Finding(
        name="Python",
        state="sound" if sound else "broken",
        detail=f"{version} on {platform.system()} {platform.machine()}",
        advice="" if sound else f"make the environment anew with Python {needed}",
    )


def check_packages(asked: list[Requirement]) -> Finding:
    """Return whether every package that fedpower cannot do without is there and can be imported."""
    core = [each for each in asked if each.extra is None]
    wrong = [_complaint(each) for each in core if _complaint(each)]
    detail = ", ".join(f"{each.package} {each.version}" for each in core)
    error = "" if wrong else _import_error([each.module for each in core])
    if wrong or error:
        return Finding(
            name="packages",
            state="broken",
            detail="; ".join(wrong) or error,
            advice="`pip install --force-reinstall .` in a copy of the project",
        )
    return Finding(name="packages", state="sound", detail=detail)


def check_extra(extra: str, asked: list[Requirement]) -> Finding:
    """Return whether an extra is there, and whether what is there works."""
    wanted = [each for each in asked if each.extra == extra]
    name = f"extra {extra}"
    install = installing(extra)
    missing = [each.package for each in wanted if each.version is None]
    if missing:
        what = f" ({_PURPOSES[extra]})" if extra in _PURPOSES else ""
        return Finding(
            name=name, state="absent", detail=f"without {', '.join(missing)}{what}", advice=install
        )
    wrong = [_complaint(each) for each in wanted if _complaint(each)]
    detail = "; ".join(wrong) or _import_error([each.module for each in wanted])
    if detail:
        return Finding(name=name, state="broken", detail=detail, advice=install)
    versions = ", ".join(f"{each.package} {each.version}" for each in wanted)
    return Finding(name=name, state="sound", detail=versions)


def check_isolation() -> Finding:
    """Return what would keep the network from the rows in `fedpower silo`; without it silos still run."""
    found = available()
    return Finding(
        name="isolation", state="absent" if found is Isolation.NONE else "sound", detail=describe(found)
    )


def extras_of(asked: list[Requirement]) -> list[str]:
    """Return the extras that a user may install."""
    named = dict.fromkeys(each.extra for each in asked if each.extra is not None)
    return [extra for extra in named if extra not in NOT_FOR_USERS]


def _import_error(modules: list[str]) -> str:
    """Return why modules cannot be imported, in one line; empty where they can."""
    return last_words(f"import {', '.join(modules)}")[0]


def last_words(code: str) -> tuple[str, str]:
    """Return the error of a piece of Python in a process of its own, and what it printed."""
    try:
        done = subprocess.run(  # noqa: S603 - our own words, run by this Python
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S} seconds", ""
    if done.returncode == 0:
        return "", done.stdout.strip()
    lines = done.stderr.strip().splitlines()
    return (lines[-1].strip() if lines else f"ended with status {done.returncode}"), ""


def _complaint(asked: Requirement) -> str:
    """Return what is wrong with a package's version; empty where nothing is."""
    if asked.version is None:
        return f"{asked.package} is not installed"
    if not within(asked.version, asked.bounds):
        return f"{asked.package} must be {asked.bounds}, got {asked.version}"
    return ""
