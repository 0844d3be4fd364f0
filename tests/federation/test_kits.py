"""Kits: each party makes its key and an authority signs it; whatever umasks and names may be."""

import os
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from cryptography import x509
from msgspec.structs import replace
from nvflare.lighter.utils import verify_cert_chain
from studies import signed_kit, write_silo, write_study

from fedpower.cli import main
from fedpower.exceptions import InputError
from fedpower.federation import (
    AUTHORITY_CERTIFICATE,
    CERTIFICATE,
    IDENTITY,
    KEY,
    REVOKED,
    TLS,
    certificates,
    kits,
)
from fedpower.federation import runner as running
from fedpower.federation.certificates import days_left, fingerprint
from fedpower.federation.coordinator import StudyRun
from fedpower.federation.kits import Authority, Kit, Request, accept, accept_list, ask
from fedpower.federation.study_file import StudyFile
from fedpower.protocol.messages import Enrolment
from fedpower.protocol.secure import Identity


@pytest.fixture
def study(tmp_path: Path) -> StudyFile:
    return write_study(tmp_path)


@pytest.fixture
def authority(study: StudyFile, tmp_path: Path) -> Authority:
    return Authority.make(study.federation, tmp_path / "authority")


@pytest.mark.slow
def test_kits_are_private_have_their_own_keys_and_pass_flare_s_own_checks(tmp_path):
    """Whatever the umask; names of silos may have dashes and digits."""
    names = ["site-01", "site-02", "3-east-wing"]
    study = write_study(tmp_path, silos={"names": names})
    umask = os.umask(0)
    try:
        authority = Authority.make(study.federation, tmp_path / "authority")
        for party in ("coordinator", "runner", *names):
            signed_kit(authority, party, tmp_path / "kits" / party)
        ask(study.federation, names[0], tmp_path / "kits" / names[0], renew=True)
        place = tmp_path / "kits" / "coordinator" / "runs" / "0"
        run = StudyRun(study, run="0" * 16, checkpoint=place)
        for question in run.coordinator.next():
            run.coordinator.receive(replace(question, body=Enrolment(n_rows=60, n_features=5)))
    finally:
        os.umask(umask)
    assert (place / "0.round").stat().st_mode & 0o777 == 0o600
    keys = []
    for party in ("coordinator", "runner", *names):
        kit = tmp_path / "kits" / party
        opened = Kit(kit, party)
        verify_cert_chain(opened.certificate, [], opened.authority)
        hosts = opened.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert ("localhost" in hosts.get_values_for_type(x509.DNSName)) == (party == "coordinator")
        assert opened.federation == study.federation
        assert opened.check() > 0
        assert b"PRIVATE" not in (kit / f"{party}.csr").read_bytes()
        keys.append((kit / TLS / KEY).read_bytes())
        with pytest.raises(InputError, match="must be new or empty"):
            ask(study.federation, party, kit)
    assert len(set(keys)) == len(keys)
    early = tmp_path / "early" / IDENTITY
    early.parent.mkdir()
    Identity.new().save(early)
    made = early.read_bytes()
    ask(study.federation, names[0], early.parent)
    assert early.read_bytes() == made, "a study may name the key before there is a kit"
    held = [path for path in authority.folder.rglob("*") if path.is_file()]
    assert {path.name for path in held if b"PRIVATE" in path.read_bytes()} == {"authority.key"}
    assert (authority.folder / "authority.key").read_bytes() not in keys
    for name in ("authority", "kits"):
        paths = (tmp_path / name, *(tmp_path / name).rglob("*"))
        assert [path for path in paths if path.stat().st_mode & 0o077] == []


def test_certificates_end_with_their_authority_at_the_latest_and_are_refused_before_they_connect(
    study, tmp_path, monkeypatch
):
    short = Authority.make(study.federation, tmp_path / "short", days=100)
    assert days_left(short.certificate) == 99
    assert signed_kit(short, "south", tmp_path / "south").check() == 99
    for party in ("north", "coordinator"):
        assert signed_kit(short, party, tmp_path / party, days=2).check() == 1
    silo = write_silo(tmp_path)

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=3)

    monkeypatch.setattr(certificates, "datetime", Later)
    day = (datetime.now(UTC) + timedelta(days=2)).strftime("%Y-%m-%d")
    for words in (
        ("node", "start", str(tmp_path / "north"), str(silo.path)),
        ("node", "start", str(tmp_path / "north"), "--part=node", f"--socket={tmp_path / 'vault'}"),
        ("node", "start", str(tmp_path / "coordinator")),
    ):
        refused = CliRunner().invoke(main, words)
        assert refused.exit_code == 2
        assert re.search(f"expired on {day}; request another with .*--renew", refused.stderr)
        assert len(refused.stderr.splitlines()) == 1


def test_one_party_is_renewed_with_its_old_key_or_a_new_one(authority, tmp_path):
    kit = tmp_path / "north"
    old = fingerprint(signed_kit(authority, "north", kit, days=10).certificate.public_key())
    authority.sign(Request.read(kit / "north.csr"), days=20, renew=True)
    assert fingerprint(accept(kit, authority.signed("north")).certificate.public_key()) == old
    request = ask(authority.federation, "north", kit, renew=True)
    assert Kit(kit).check() == 19, "the kit works on meanwhile"
    authority.sign(Request.read(request), days=200, renew=True)
    renewed = accept(kit, authority.signed("north"))
    assert renewed.check() == 199
    assert fingerprint(renewed.certificate.public_key()) != old


def test_an_authority_signs_no_second_key_no_stranger_and_no_other_federation(study, authority, tmp_path):
    first = ask(study.federation, "north", tmp_path / "north")
    with pytest.raises(InputError, match=r"must have a certificate to renew, got none"):
        authority.sign(Request.read(first), renew=True)
    authority.sign(Request.read(first))
    again = Request.read(ask(study.federation, "north", tmp_path / "another-north"))
    with pytest.raises(InputError, match=r"'north' must not have a certificate yet"):
        authority.sign(again)
    with pytest.raises(InputError, match=r"must be coordinator, runner, north, .* got 'west'"):
        ask(study.federation, "west", tmp_path / "west")
    (tmp_path / "other").mkdir()
    other = write_study(tmp_path / "other", coordinator={"port": 9000}).federation
    with pytest.raises(InputError, match=r"got a request from 'south' in federation"):
        authority.sign(Request.read(ask(other, "south", tmp_path / "other-south")))
    text = first.read_bytes()
    (tmp_path / "altered.csr").write_bytes(text[:200] + b"AAAA" + text[204:])
    with pytest.raises(InputError, match=r"must be a request made by"):
        Request.read(tmp_path / "altered.csr")
    key = kits.read_key(tmp_path / "north" / TLS / kits.NEXT_KEY)
    (tmp_path / "south.csr").write_bytes(kits.new_request(study.federation, "south", key))
    with pytest.raises(InputError, match=r"'south' must have its own key, got the key of 'north'"):
        authority.sign(Request.read(tmp_path / "south.csr"))


def test_a_kit_takes_its_own_certificate_of_its_own_authority_and_no_other_and_no_other_s_key(
    study, authority, tmp_path
):
    foreign = Authority.make(study.federation, tmp_path / "foreign")
    for party in ("north", "south"):
        request = Request.read(ask(study.federation, party, tmp_path / party))
        authority.sign(request)
        foreign.sign(request)
    with pytest.raises(InputError, match=r"got one without its certificate"):
        Kit(tmp_path / "north")
    with pytest.raises(InputError, match=r"must certify the key in"):
        accept(tmp_path / "north", authority.signed("south"))
    accept(tmp_path / "north", authority.signed("north"))
    with pytest.raises(InputError, match=r"signed by the same authority as before"):
        accept(tmp_path / "north", foreign.signed("north"))
    south, of_another = authority.signed("south").read_bytes(), foreign.folder / AUTHORITY_CERTIFICATE
    own = south[: south.index(b"-----BEGIN", 1)]
    (tmp_path / "mixed.crt").write_bytes(own + of_another.read_bytes())
    with pytest.raises(InputError, match=r"must be a certificate signed by"):
        accept(tmp_path / "south", tmp_path / "mixed.crt")
    shutil.copyfile(tmp_path / "south" / "south.csr", tmp_path / "south" / "another.csr")
    with pytest.raises(InputError, match=r"must hold exactly one request, the signed one, got 2"):
        accept(tmp_path / "south", authority.signed("south"))
    (tmp_path / "south" / "another.csr").unlink()
    accept(tmp_path / "south", authority.signed("south"))
    # A party whose files do not match could never connect, and would try without end.
    for wrong in (KEY, CERTIFICATE, AUTHORITY_CERTIFICATE):
        mixed = tmp_path / f"with {wrong}"
        shutil.copytree(tmp_path / "north", mixed)
        Kit(mixed).check()
        source = of_another if wrong == AUTHORITY_CERTIFICATE else tmp_path / "south" / TLS / wrong
        shutil.copyfile(source, mixed / TLS / wrong)
        with pytest.raises(InputError, match="must belong together"):
            Kit(mixed).check(with_key=wrong != AUTHORITY_CERTIFICATE)


def test_a_list_has_every_certificate_of_a_revoked_party_which_can_then_have_one_for_a_new_key(
    authority, tmp_path
):
    kit = tmp_path / "north"
    serials = [signed_kit(authority, "north", kit).certificate.serial_number]
    stolen = (kit / "north.csr").read_bytes()
    authority.sign(Request.read(kit / "north.csr"), renew=True)
    serials.append(accept(kit, authority.signed("north")).certificate.serial_number)
    south = signed_kit(authority, "south", tmp_path / "south")
    for name, words in (("east", "'east' must have a certificate to revoke"), ("*", "must be coordinator, ")):
        with pytest.raises(InputError, match=words):
            authority.revoke(name)
    assert not (authority.folder / REVOKED).exists()
    first = authority.revoke("north")
    assert first.is_signature_valid(authority.certificate.public_key())
    assert {entry.serial_number for entry in first} == set(serials)
    for folder in (kit, south.folder):
        accept_list(folder, authority.folder / REVOKED)
    assert south.check() > 0
    with pytest.raises(InputError, match="must be valid, got a revoked one; request another with"):
        Kit(kit).check()
    (sentence,) = certificates.warnings(kit / TLS)
    assert sentence.startswith("the certificate of north is revoked; request another with")
    (tmp_path / "stolen.csr").write_bytes(stolen)
    with pytest.raises(
        InputError, match="'north' must have a new key, got one whose certificate was revoked"
    ):
        authority.sign(Request.read(tmp_path / "stolen.csr"))
    authority.sign(Request.read(ask(authority.federation, "north", kit, renew=True)))
    renewed = accept(kit, authority.signed("north"))
    assert renewed.check() > 0
    assert certificates.warnings(kit / TLS) == []
    second = authority.revoke("north")
    listed = {entry.serial_number: entry.revocation_date_utc for entry in second}
    assert set(listed) == {*serials, renewed.certificate.serial_number}
    assert [listed[each.serial_number] for each in first] == [each.revocation_date_utc for each in first]
    third = authority.revoke("south")
    numbers = [certificates.list_number(each) for each in (first, second, third)]
    assert numbers == [1, 2, 3]
    assert {entry.serial_number for entry in third} > set(listed)


def test_a_kit_takes_a_list_of_its_authority_that_is_no_older_than_its_own(authority, tmp_path):
    kit, lists = tmp_path / "north", []
    for party in ("north", "south", "east"):
        signed_kit(authority, party, tmp_path / party)
    for party in ("south", "east"):
        authority.revoke(party)
        lists.append(tmp_path / f"{party}.crl")
        shutil.copyfile(authority.folder / REVOKED, lists[-1])
    foreign = Authority.make(authority.federation, tmp_path / "foreign")
    signed_kit(foreign, "south", tmp_path / "foreign-south")
    foreign.revoke("south")
    damaged = tmp_path / "damaged.crl"
    content = lists[0].read_bytes()
    damaged.write_bytes(content[:80] + b"A" + content[81:])
    held = kit / TLS / REVOKED
    for wrong in (foreign.folder / REVOKED, damaged, tmp_path / "none.crl"):
        with pytest.raises(InputError, match=r"must be a list of revoked certificates, signed by the auth"):
            accept_list(kit, wrong)
        assert not held.exists()
    for given in (*lists, lists[-1]):
        accept_list(kit, given)
        assert certificates.revoked_serials(kit / TLS) == {
            entry.serial_number for entry in x509.load_pem_x509_crl(given.read_bytes())
        }
        assert held.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match=r"must be newer than that in .*, number 2, got number 1"):
        accept_list(kit, lists[0])
    assert held.read_bytes() == lists[1].read_bytes()
    held.write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"revoked.crl must be a list of revoked certificates"):
        Kit(kit).check()


def test_a_session_is_opened_with_the_certificate_that_the_kit_has_by_then(authority, tmp_path, monkeypatch):
    folder = tmp_path / "runner"
    signed_kit(authority, "runner", folder)
    kit = Kit(folder)
    authority.sign(Request.read(ask(authority.federation, "runner", folder, renew=True)), renew=True)
    accept(folder, authority.signed("runner"))
    monkeypatch.setattr(running, "CoordinatorSession", Mock())
    with running.open_session(kit, patience=None):
        pass


def test_a_certificate_is_warned_about_from_30_days_on(authority, tmp_path):
    for days, words in ((31, []), (30, ["in 29 days"]), (0, ["ended on"])):
        kit = tmp_path / f"{days}"
        signed_kit(authority, "north", kit, days=days)
        told = certificates.warnings(kit / TLS)
        assert all("request --renew" in sentence for sentence in told)
        assert len(told) == len(words)
        assert all(word in sentence for word, sentence in zip(words, told, strict=True))
        authority.signed("north").unlink()
