"""A study of the three hospitals, and kits that hold no keys: enough for all that contacts nobody."""

from pathlib import Path

from hospitals import succeed

SILOS = "north,south,east"
STUDY = ("--name", "heart", "--silos", SILOS, "--columns-of", "north.csv", "-k", 2)
PRIVATE_STUDY = (*STUDY, "--epsilon", 1, "--row-norm", 10)


def write_study(*more: object) -> Path:
    succeed("study", "init", "study.toml", *PRIVATE_STUDY, *more)
    return Path("study.toml")


def kit_for(party: str, *, study: str = "study.toml") -> Path:
    """Return a folder that is told from a kit by nothing but its keys."""
    kit = Path("kits") / party
    (kit / "startup").mkdir(parents=True)
    (kit / "startup" / "rootCA.pem").write_text("")
    (kit / "startup" / "party").write_text(party)
    (kit / "study.toml").write_text(Path(study).read_text())
    return kit


def silo_file(name: str = "north", *, cap: float = 2.0, more: str = "") -> Path:
    """Write a silo's own file, and make its ledger anew."""
    path = Path(f"{name}.toml")
    path.write_text(
        f'silo = "{name}"\n[data]\npath = "{name}.csv"\n[ledger]\npath = "{name}.ledger"\n'
        f"epsilon = {cap}\ndelta = 1e-5\n{more}"
    )
    Path(f"{name}.ledger").unlink(missing_ok=True)
    succeed("budget", "init", f"{name}.ledger", "--epsilon", cap, "--delta", 1e-5)
    return path
