"""Certificates that ended, that another authority signed, or that are somebody else's."""

import json
import shutil
import time
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import hashes

from adversary.hostile import HONEST, Peer, Stage, untouched
from fedpower.federation import certificates
from fedpower.federation.certificates import Authority, Request
from fedpower.federation.kits import COORDINATOR, make_kits

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    made = Stage(tmp_path_factory.mktemp("certificates"))
    made.begin()
    yield made
    made.stop()


def knock(stage, startup, name="east") -> Peer:
    """Return a peer that tried for a while to connect with the key and certificate of a folder."""
    made = Peer(stage, "east", name=name)
    made._startup = startup
    made.join()
    made.put(COORDINATOR, {"kind": "answer", "number": 1}, b"x")
    made.put(COORDINATOR, {"kind": "call", "number": 1}, json.dumps({"do": "status"}).encode())
    time.sleep(0.5)
    return made


def test_the_real_certificate_connects(stage):
    made = knock(stage, stage.startup("east"))
    assert made.connected() == [COORDINATOR]
    made.leave()


def test_an_expired_certificate_gets_no_connection(stage, tmp_path):
    startup = tmp_path / "startup"
    shutil.copytree(stage.startup("east"), startup)
    authority = Authority(stage.kits / "authority")
    request = Request.read(stage.kits / "east" / "east.csr")
    long_ago = datetime.now(UTC) - timedelta(days=9)
    built = certificates._builder(
        certificates.subject(stage.study, "east"),
        authority.certificate.subject,
        request.key,
        authority.key,
        long_ago,
        timedelta(days=8),
    )
    ended = built.sign(authority.key, hashes.SHA256())
    (startup / "client.crt").write_bytes(certificates.pem(ended))
    with untouched(stage):
        made = knock(stage, startup)
        assert made.connected() == []
        assert made.got == []
        made.leave()


def test_a_certificate_of_another_authority_gets_no_connection(stage, tmp_path):
    make_kits(stage.study, tmp_path / "kits")
    startup = tmp_path / "kits" / "east" / "startup"
    shutil.copyfile(stage.startup("east") / "rootCA.pem", startup / "rootCA.pem")
    with untouched(stage):
        made = knock(stage, startup)
        assert made.connected() == []
        made.leave()


@pytest.mark.parametrize("name", [*HONEST, "east", "runner"])
def test_the_coordinator_s_certificate_makes_nobody_a_silo_or_the_runner(stage, tmp_path, name):
    startup = tmp_path / "startup"
    shutil.copytree(stage.startup(COORDINATOR), startup)
    for kind in ("crt", "key"):
        (startup / f"server.{kind}").rename(startup / f"client.{kind}")
    with untouched(stage):
        made = knock(stage, startup, name=name)
        assert made.got == []
        made.leave()
    assert f"claimed endpoint '{name}'" in stage.log(COORDINATOR)


def test_a_silo_s_certificate_makes_no_coordinator(stage, tmp_path):
    """Honest silos do not speak to whoever listens at the coordinator's address with a silo's key."""
    startup = tmp_path / "startup"
    shutil.copytree(stage.startup("east"), startup)
    for kind in ("crt", "key"):
        (startup / f"client.{kind}").rename(startup / f"server.{kind}")
    with untouched_silos(stage):
        stage.stop(COORDINATOR)
        made = Peer(stage, COORDINATOR)
        made.listen("localhost", stage.study.port, startup)
        time.sleep(8.0)
        assert made.connected() == []
        made.leave()
        time.sleep(1.0)
        stage.start(COORDINATOR)
    stage.wait_until_connected()


class untouched_silos:  # noqa: N801 (reads as `untouched`)
    """Assert that silos' charges and processes stay as they are, while the coordinator changes."""

    def __init__(self, stage) -> None:
        self.stage = stage

    def __enter__(self) -> None:
        self.before = self.stage.record()

    def __exit__(self, *raised: object) -> None:
        after = self.stage.record()
        assert after.charges == self.before.charges
        for name in HONEST:
            assert after.processes[name] == self.before.processes[name]
