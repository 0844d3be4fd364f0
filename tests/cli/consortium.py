"""A study of the three hospitals, and kits of parties that contact nobody."""

from pathlib import Path

from hospitals import succeed

from fedpower.federation.kits import Authority, Request, accept, ask
from fedpower.federation.study_file import read_study

SILOS = "north,south,east"
STUDY = ("--name", "heart", "--silos", SILOS, "--columns-of", "north.csv", "-k", 2)
PRIVATE_STUDY = (*STUDY, "--epsilon", 1, "--row-norm", 10)


def write_study(*more: object) -> Path:
    succeed("study", "init", "study.toml", *PRIVATE_STUDY, *more)
    return Path("study.toml")


def kit_for(party: str, *, study: str = "study.toml") -> Path:
    """Return the kit of a party, of an authority that is nobody else's."""
    read, kit, authority = read_study(Path(study)), Path("kits") / party, Path("kits") / f"{party}-authority"
    signer = Authority.make(read, authority)
    signer.sign(Request.read(ask(read, party, kit)))
    accept(kit, signer.signed(party))
    return kit


def silo_file(name: str = "north", *, cap: float = 2.0, more: str = "") -> Path:
    """Write a silo's own file, and make its ledger anew."""
    path = Path(f"{name}.toml")
    path.write_text(
        f'silo = "{name}"\n[data]\npath = "{name}.csv"\n[ledger]\npath = "{name}.ledger"\n'
        f"epsilon = {cap}\ndelta = 1e-5\n{more}"
    )
    Path(f"{name}.ledger").unlink(missing_ok=True)
    succeed("ledger", "create", f"{name}.ledger", "--epsilon", cap, "--delta", 1e-5)
    return path
