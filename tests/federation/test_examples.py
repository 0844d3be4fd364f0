"""Examples and the page of a federation: the network is kept from the rows, and what they name is there."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml
from studies import write_study

from fedpower.cli import COMMANDS
from fedpower.cli.node import start
from fedpower.federation import silo_file, study_file
from fedpower.federation.kits import Kit, make_kits

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "federation"
UNITS = ("vault", "node", "coordinator")
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SILOS = ("north", "south", "east")


def unit(name: str) -> dict[str, list[str]]:
    """Return the settings of a unit's service; one that is given again adds to what was there."""
    found: dict[str, list[str]] = {}
    for line in (EXAMPLES / f"fedpower-{name}.service").read_text(encoding="utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def check_words(words: list[str]) -> None:
    """Refuse what is no command of fedpower, or an option that `fedpower node start` does not have."""
    assert words[0] in COMMANDS
    if words[:2] == ["node", "start"]:
        options = {name for each in start.params for name in each.opts}
        assert {word for word in words if word.startswith("--")} <= options


HARDENED = {key: ["yes"] for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "ProtectKernelModules")}
HARDENED |= {"ProtectSystem": ["strict"], "CapabilityBoundingSet": [""]}


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_hardened_and_starts_a_command_that_there_is(name):
    settings = unit(name)
    program, *words = settings["ExecStart"][0].split()
    assert program == "/opt/fedpower/bin/fedpower"
    check_words(words)
    assert HARDENED.items() <= settings.items()
    assert settings["User"] != ["root"]
    assert settings["Restart"][0] in ("on-failure", "always")
    if name != "coordinator":
        # The first line is what may be called; one with a tilde takes from it; a later one adds again.
        filters = settings["SystemCallFilter"]
        assert filters[:2] == ["@system-service", "~@privileged"]
        assert {"seccomp", "capset", "landlock_restrict_self"} <= set(filters[2].split())


def test_node_and_vault_are_of_different_users_that_share_a_socket_and_no_folder():
    node, vault = unit("node"), unit("vault")
    assert node["User"] != vault["User"]
    assert node["SupplementaryGroups"] == vault["Group"]
    for each in (node, vault):
        assert "--socket /run/fedpower-north/vault" in each["ExecStart"][0]
    folder = vault["WorkingDirectory"][0]
    alone = {"RuntimeDirectory": ["fedpower-north"], "RuntimeDirectoryMode": ["0750"],
             "ReadWritePaths": [f"{folder}/north/ledger"], "PrivateNetwork": ["yes"],
             "RestrictAddressFamilies": ["AF_UNIX"]}  # fmt: skip
    assert alone.items() <= vault.items()
    assert node["Requires"] == ["fedpower-vault.service"]
    assert node["InaccessiblePaths"] == [folder]
    assert not {"ReadWritePaths", "StateDirectory", "RuntimeDirectory"} & node.keys()


@pytest.mark.parametrize("silo", SILOS)
def test_containers_of_node_and_vault_are_of_different_users_that_share_a_socket(silo):
    node, vault = (COMPOSE["services"][f"{silo}-{part}"] for part in ("node", "vault"))
    made = dict(re.findall(r"--uid (\d+) --gid fedpower (\w+)", CONTAINERFILE))
    (group,) = re.findall(r"groupadd --gid (\d+) fedpower", CONTAINERFILE)
    for each, name in ((node, "node"), (vault, "vault")):
        user, _, of = each["user"].partition(":")
        assert (made[user], of) == (name, group)
    assert vault["network_mode"] == "none"
    assert not {"network_mode", "ports"} & node.keys()
    mounted = [{volume.split(":")[0] for volume in each["volumes"]} for each in (node, vault)]
    assert set.intersection(*mounted) == {f"{silo}-socket"}
    assert f"{silo}-kit:/kit:ro" in node["volumes"]
    assert f"{silo}-silo:/silo:ro" in vault["volumes"]


def test_containers_are_not_root_and_their_file_systems_are_read_only():
    named = set()
    for name, service in COMPOSE["services"].items():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        if name == "example":  # makes the others' files, once
            assert service["network_mode"] == "none"
            continue
        named |= {volume.split(":")[0] for volume in service["volumes"]}
        assert service["user"].split(":")[0] != "0"
        check_words(service["command"])
        if name != "runner":
            assert service["restart"] in ("on-failure:5", "always")
    assert named == COMPOSE["volumes"].keys()
    (user,) = re.findall(r"^USER (\d+):", CONTAINERFILE, flags=re.MULTILINE)
    assert user != "0"


def test_the_base_of_the_image_is_named_by_its_digest():
    (base,) = re.findall(r"^ARG BASE=(.+)$", CONTAINERFILE, flags=re.MULTILINE)
    version = re.fullmatch(r"docker\.io/library/python:(3\.\d+)\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)
    assert version is not None
    assert set(re.findall(r"^FROM (\S+)", CONTAINERFILE, flags=re.MULTILINE)) == {"${BASE}"}
    bundle = (ROOT / "scripts" / "bundle").read_text(encoding="utf-8")
    assert f"\npython={version[1]}" in bundle, "the wheels of a bundle are for the Python of the base"


def test_a_vault_needs_no_tls_key(tmp_path):
    """What the comments of the units copy for the vault is enough for it."""
    named = re.search(r"cp kits/north/tls/{([\w.,]+)} ", (EXAMPLES / "fedpower-vault.service").read_text())
    assert named is not None
    study = write_study(tmp_path)
    make_kits(study.federation, tmp_path / "kits")
    kit, own = tmp_path / "kits" / "north", tmp_path / "vault"
    (own / "tls").mkdir(parents=True)
    shutil.copy(kit / "federation.toml", own)
    for name in named[1].split(","):
        assert not name.endswith(".key")
        shutil.copy(kit / "tls" / name, own / "tls")
    opened = Kit(own, "north")
    assert opened.federation == study.federation
    assert opened.check(with_key=False) > 0


def test_the_image_is_built_from_all_files_that_the_project_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    named = {project["project"]["readme"], *project["project"]["license-files"]}
    named |= {wheel["hooks"]["custom"]["path"], "pyproject.toml", "constraints.txt", "src"}
    lines = re.findall(r"^COPY (?!--)(.+)$", CONTAINERFILE, flags=re.MULTILINE)
    assert named <= {name for line in lines for name in line.split()[:-1]}
    assert all(package.startswith("src/") for package in wheel["packages"])


FIRST, APPROVE, OPERATE = (
    (ROOT / "docs" / "operator" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("federation", "approve", "operate")
)
OF_A_SILO = (silo_file.Data, silo_file.Columns, silo_file._Ledger, silo_file._Approve, silo_file._Identity)


def test_every_key_of_a_study_and_of_a_silo_is_explained():
    tables = [*study_file.TABLES.items(), *((kind.__name__.strip("_").lower(), kind) for kind in OF_A_SILO)]
    for table, kind in tables:
        rows = [row for row in OPERATE.splitlines() if row.startswith(f"| `[{table}]")]
        for key in kind.__struct_fields__:
            assert any(re.search(rf"\b{key}\b", row) for row in rows), (table, key)


def test_every_command_that_the_pages_and_the_units_name_is_there():
    for text in (
        FIRST,
        APPROVE,
        OPERATE,
        *((EXAMPLES / f"fedpower-{name}.service").read_text() for name in UNITS),
    ):
        named = re.findall(r"(?:`|\$ |bin/)fedpower ([a-z]+)", text)
        assert named
        assert set(named) <= set(COMMANDS)
