"""What strangers and overreaching colleagues get from a silo: a refusal, a line in its log, no charge."""

import json
import shutil
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from fedpower.federation.policy import job
from ground import SILOS, Ground, wait_for

from fedpower.federation import policy
from fedpower.federation.kits import COORDINATOR, make_kits
from fedpower.federation.processes import coordinator_command, silo_command, start, stop
from fedpower.federation.runner import open_session

pytestmark = pytest.mark.federation

OTHER_EXECUTOR = "nvflare.app_common.np.np_trainer.NPTrainer"


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """A federation whose coordinator lets everything through, so that silos stand alone."""
    with pytest.MonkeyPatch.context() as patch:
        rights = {**policy.COORDINATOR_RIGHTS, "byoc": "any", "operate": "any"}
        patch.setattr(policy, "COORDINATOR_RIGHTS", rights | {"shell_commands": "any"})
        made = Ground(tmp_path_factory.mktemp("intrusion"), min_silos=4)
        made.start()
        with open_session(made.runner, patience=120.0) as session:
            wait_for(lambda: set(session.silos()) == set(SILOS), "four silos")
        yield made
        made.stop()


def submit(ground, files: dict[str, object]) -> str:
    """Submit a job of these files, wait for its end, and return its state."""
    folder = ground.folder / "job"
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with open_session(ground.runner, patience=60.0) as session:
        number = session._session.submit_job(str(folder))
        wait_for(lambda: session.status(number).startswith("FINISHED"), "the job's end")
        return session.status(number)


def assert_untouched(ground):
    assert all(not ground.charges(name) for name in SILOS)


def logs(ground) -> str:
    """Return what the silos logged, in their consoles and their files."""
    reported = [ground.log(name) for name in SILOS]
    for name in SILOS:
        reported += [
            path.read_text(errors="replace") for path in ground.place(name).rglob("log.txt")
        ]
    return "\n".join(reported)


def test_a_job_that_brings_code_is_refused_at_the_silo(ground):
    ground.fresh()
    spoils = ground.folder / "spoils"
    code = (
        "from pathlib import Path\nfrom fedpower.federation.apps import StudySilo\n"
        f"Path({str(spoils)!r}).touch()\nclass Thief(StudySilo):\n    pass\n"
    )
    files = job("0" * 16, "faults")
    client = files["app/config/config_fed_client.json"]
    client["executors"][0]["executor"]["path"] = "thief.Thief"
    assert submit(ground, {**files, "app/custom/thief.py": code}) != "FINISHED:COMPLETED"
    assert not spoils.exists(), "the code was run"
    assert_untouched(ground)
    for name in SILOS:
        assert "turned away job" in ground.log(name)
        assert "got 'custom/thief.py' too" in ground.log(name)


def test_a_job_that_names_other_classes_is_refused_at_the_silo(ground):
    ground.fresh()
    files = job("1" * 16, "faults")
    client = files["app/config/config_fed_client.json"]
    client["executors"][0]["executor"] = {"path": OTHER_EXECUTOR, "args": {}}
    assert submit(ground, files) != "FINISHED:COMPLETED"
    assert_untouched(ground)
    for name in SILOS:
        assert "got another configuration" in ground.log(name)


def test_flare_s_own_policy_holds_where_the_doorkeeper_is_away(ground):
    """The second line: no code with a job, no class that is not on the list."""
    ground.fresh()
    resources = ground.place("north") / "local" / "resources.json"
    content = json.loads(resources.read_text())
    content["components"] = [each for each in content["components"] if each["id"] != "app_deployer"]
    ground.stop("north")
    with pytest.MonkeyPatch.context() as patch:
        write = policy.write_silo_policy

        def without_doorkeeper(kit):
            write(kit)
            resources.write_text(json.dumps(content))

        patch.setattr(policy, "write_silo_policy", without_doorkeeper)
        ground.start("north")
    with open_session(ground.runner, patience=60.0) as session:
        wait_for(lambda: set(session.silos()) == set(SILOS), "four silos")
    files = job("2" * 16, "faults")
    files["meta.json"]["deploy_map"] = {"app": ["server", "north"]}
    client = files["app/config/config_fed_client.json"]
    client["executors"][0]["executor"] = {"path": OTHER_EXECUTOR, "args": {}}
    submit(ground, files)
    assert f"Component '{OTHER_EXECUTOR}'" in logs(ground)
    assert "is not in allow_list" in logs(ground)
    submit(ground, {**files, "app/custom/thief.py": "print('here')"})
    assert "north: NVFLARE_ERROR: BYOC not permitted" in ground.log(COORDINATOR)
    assert_untouched(ground)


def test_logs_and_shells_of_a_silo_are_closed_to_the_runner(ground):
    with open_session(ground.runner, patience=60.0) as session:
        flare = session._session
        for peek in (
            lambda: flare.tail_target_log("north"),
            lambda: flare.cat_target("north", file="log.txt"),
            lambda: flare.ls_target("north"),
            lambda: flare.grep_target("north", pattern="a", file="log.txt"),
        ):
            with pytest.raises(Exception, match=r"(?i)not authorized|permission|denied"):
                peek()


REFUSED = "CERTIFICATE_VERIFY_FAILED"
"""What TLS says, in the words of the library under gRPC."""


def knock(ground, kit: Path) -> str:
    """Start a silo's process with a kit against the ground's coordinator until one of them refuses."""
    content = json.loads((kit / "startup" / "fed_client.json").read_text())
    content["servers"][0]["service"]["target"] = f"localhost:{ground.study.port}"
    (kit / "startup" / "fed_client.json").write_text(json.dumps(content))
    command, reported = silo_command(kit, kit / "silo.toml", checked="")
    log = kit.parent / "knock.log"
    before = ground.log(COORDINATOR).count(REFUSED)
    with log.open("w") as file:
        child = start(command, reported, cwd=kit, log=file.fileno())
        try:
            wait_for(
                lambda: (
                    REFUSED in log.read_text(errors="replace")
                    or ground.log(COORDINATOR).count(REFUSED) > before
                ),
                "a refusal",
            )
        finally:
            stop(child)
    return log.read_text(errors="replace")


def test_a_certificate_of_another_study_gets_no_connection(ground, tmp_path):
    ground.fresh()
    make_kits(ground.study, tmp_path / "foreign")
    kit = tmp_path / "foreign" / "north"
    shutil.copyfile(ground.place("north") / "silo.toml", kit / "silo.toml")
    assert REFUSED in knock(ground, kit), "the silo does not trust this coordinator either"
    assert "Successfully registered" not in (kit / "log.txt").read_text()
    assert_untouched(ground)


def greeted(ground, startup: Path | None) -> bool:
    """Return whether the coordinator says a word to whoever shows the certificate of a kit."""
    context = ssl.create_default_context(cafile=ground.place("north") / "startup" / "rootCA.pem")
    context.set_alpn_protocols(["h2"])
    if startup is not None:
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with socket.create_connection(("127.0.0.1", ground.study.port), timeout=30) as raw:
        try:
            with context.wrap_socket(raw, server_hostname="localhost") as stream:
                stream.sendall(
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
                )
                return bool(stream.recv(1))
        except (ssl.SSLError, ConnectionError):
            return False


def test_an_unknown_certificate_or_none_gets_no_connection(ground, tmp_path):
    """No certificate, one made by its bearer, one of another study with the same names; then ours."""
    make_kits(ground.study, tmp_path / "foreign")
    make_certificate(tmp_path)
    assert not greeted(ground, None)
    assert not greeted(ground, tmp_path)
    assert not greeted(ground, tmp_path / "foreign" / "north" / "startup")
    assert greeted(ground, ground.place("north") / "startup")


def make_certificate(startup: Path) -> None:
    """Put a self-signed certificate in the name of north into a kit."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=9))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.TraditionalOpenSSL
    (startup / "client.crt").write_bytes(made.public_bytes(pem))
    (startup / "client.key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))


def test_a_silo_does_not_speak_to_a_coordinator_of_another_authority(ground, tmp_path):
    """Whoever sits at the coordinator's address without its certificate learns nothing."""
    ground.fresh()
    kits = tmp_path / "foreign"
    make_kits(ground.study, kits)
    ground.stop(COORDINATOR)
    command, reported = coordinator_command(kits / COORDINATOR)
    log = tmp_path / "foreign.log"
    with log.open("w") as file:
        child = start(command, reported, cwd=kits / COORDINATOR, log=file.fileno())
        try:
            wait_for(lambda: all(REFUSED in ground.log(name) for name in SILOS), "refusals")
            with open_session(kits / "runner", patience=60.0) as session:
                assert session.silos() == {}
        finally:
            stop(child)
            ground.start(COORDINATOR)
    assert_untouched(ground)
