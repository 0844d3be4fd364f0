"""Kits: each party makes its key and an authority signs it; whatever umasks and names may be."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from nvflare.lighter.utils import verify_cert_chain
from studies import write_silo, write_study

from fedpower.cli import main
from fedpower.errors import InputError
from fedpower.federation import certificates, kits
from fedpower.federation.certificates import Authority, Bundle, Request, days_left, fingerprint
from fedpower.federation.coordinator import Checkpoint
from fedpower.federation.kits import (
    accept,
    ask,
    check_certificate,
    kit_certificates,
    kit_study,
    make_authority,
    make_kits,
)
from fedpower.federation.study_file import StudyFile

PARTIES = ("coordinator", "runner", "north", "south", "east")


def signed_kit(study: StudyFile, authority: Authority, party: str, kit: Path, **days: int) -> Path:
    """Make a party's kit as it is made between organisations."""
    authority.sign(Request.read(ask(study, party, kit)), **days)
    accept(kit, authority.signed(party))
    return kit


@contextmanager
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o077]


@pytest.mark.slow
def test_silos_may_have_dashes_and_digits_in_their_names(tmp_path: Path) -> None:
    names = ["site-01", "site-02", "3-east-wing"]
    study = write_study(tmp_path, silos={"names": names})
    make_kits(study, tmp_path / "kits")
    for name in names:
        kit = tmp_path / "kits" / name
        assert (kit / "startup" / "client.crt").is_file()
        assert kit_study(kit).digest == study.digest
        assert (kit / "startup" / "client.key").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_kit_of_one_study_is_not_made_over_another(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    make_kits(study, tmp_path / "kits")
    with pytest.raises(InputError, match="must be new or empty"):
        make_kits(study, tmp_path / "kits")
    with pytest.raises(InputError, match="must be new or empty"):
        ask(study, "north", tmp_path / "kits" / "north")


@pytest.mark.slow
def test_nothing_that_an_authority_holds_or_gets_has_a_party_s_private_key(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    authority = make_authority(study, tmp_path / "authority")
    keys = []
    for party in PARTIES:
        kit = signed_kit(study, authority, party, tmp_path / party)
        assert b"PRIVATE" not in (kit / f"{party}.csr").read_bytes()
        (key,) = (kit / "startup").glob("*.key")
        keys.append(key.read_bytes())
    assert len(set(keys)) == len(PARTIES)
    held = [path for path in authority.folder.rglob("*") if path.is_file()]
    assert {path.name for path in held if b"PRIVATE" in path.read_bytes()} == {"authority.key"}
    assert (authority.folder / "authority.key").read_bytes() not in keys


@pytest.mark.slow
@pytest.mark.parametrize("with_keys", [True, False])
def test_kits_made_either_way_are_those_that_flare_s_own_judges_take(with_keys: bool, tmp_path: Path) -> None:
    study = write_study(tmp_path)
    if with_keys:
        make_kits(study, tmp_path / "kits")
    else:
        authority = make_authority(study, tmp_path / "authority")
        for party in PARTIES:
            signed_kit(study, authority, party, tmp_path / "kits" / party)
    for party in PARTIES:
        bundle = kit_certificates(tmp_path / "kits" / party)
        verify_cert_chain(bundle.party, [], bundle.authority)
        hosts = bundle.party.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert ("localhost" in hosts.get_values_for_type(x509.DNSName)) == (party == "coordinator")
        assert kit_study(tmp_path / "kits" / party, party).digest == study.digest
        assert check_certificate(tmp_path / "kits" / party) > 0


@pytest.mark.slow
def test_keys_authority_kits_and_journals_are_private_whatever_the_umask(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    with no_umask():
        authority = make_authority(study, tmp_path / "authority")
        for party in PARTIES:
            signed_kit(study, authority, party, tmp_path / "kits" / party)
        ask(study, "north", tmp_path / "kits" / "north", renew=True)
        make_kits(study, tmp_path / "rehearsal")
        place = tmp_path / "kits" / "coordinator" / "runs" / "0" / "rounds.journal"
        Checkpoint(place, study="0" * 64, run="0" * 16)
    assert place.stat().st_mode & 0o777 == 0o600
    for folder in ("authority", "kits", "rehearsal"):
        assert open_to_others(tmp_path / folder) == []


def test_a_journal_that_others_could_read_is_closed_to_them_when_it_is_taken_up(tmp_path: Path) -> None:
    place = tmp_path / "rounds.journal"
    place.touch(mode=0o666)
    Checkpoint(place, study="0" * 64, run="0" * 16)
    assert place.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_certificates_last_as_long_as_was_said_and_never_longer_than_their_authority(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    authority = make_authority(study, tmp_path / "authority", days=100)
    assert days_left(authority.certificate) == 99
    kit = signed_kit(study, authority, "north", tmp_path / "north", days=30)
    assert check_certificate(kit) == 29
    kit = signed_kit(study, authority, "south", tmp_path / "south", days=1000)
    assert check_certificate(kit) == 99
    usual = make_authority(study, tmp_path / "usual")
    kit = signed_kit(study, usual, "north", tmp_path / "usual-north")
    assert (days_left(usual.certificate), check_certificate(kit)) == (3649, 364)


def test_a_party_whose_certificate_has_ended_is_told_before_it_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study(tmp_path)
    authority = make_authority(study, tmp_path / "authority")
    for party in ("north", "coordinator"):
        signed_kit(study, authority, party, tmp_path / party, days=2)
    silo = write_silo(tmp_path)

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=3)

    monkeypatch.setattr(certificates, "datetime", Later)
    day = (datetime.now(UTC) + timedelta(days=2)).strftime("%Y-%m-%d")
    for words in (
        ("silo", str(tmp_path / "north"), str(silo.path)),
        ("silo", str(tmp_path / "north"), "--part=node", f"--socket={tmp_path / 'vault'}"),
        ("coordinator", str(tmp_path / "coordinator")),
    ):
        said = CliRunner().invoke(main, words)
        assert said.exit_code == 2
        assert re.search(f"ended on {day}; ask for another with .*--renew", said.stderr)
        assert len(said.stderr.splitlines()) == 1


@pytest.mark.slow
def test_one_party_is_renewed_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    authority = make_authority(study, tmp_path / "authority")
    for party in PARTIES:
        signed_kit(study, authority, party, tmp_path / party, days=10)
    before = {
        path: path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and "north" not in str(path.relative_to(tmp_path))
    }
    kit = tmp_path / "north"
    old = kit_certificates(kit).party
    request = ask(study, "north", kit, renew=True)
    assert kit_certificates(kit).party == old, "the kit works on meanwhile"
    assert kit_study(kit, "north").digest == study.digest
    authority.sign(Request.read(request), days=200, renew=True)
    accept(kit, authority.signed("north"))
    new = kit_certificates(kit).party
    assert fingerprint(new.public_key()) != fingerprint(old.public_key())
    assert check_certificate(kit) == 199
    assert {path: path.read_bytes() for path in before} == before
    assert not (kit / "startup" / kits.NEXT_KEY).exists()


def test_a_key_may_be_kept_when_its_certificate_is_renewed(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    authority = make_authority(study, tmp_path / "authority")
    kit = signed_kit(study, authority, "north", tmp_path / "north", days=10)
    key = (kit / "startup" / "client.key").read_bytes()
    authority.sign(Request.read(kit / "north.csr"), days=20, renew=True)
    accept(kit, authority.signed("north"))
    assert check_certificate(kit) == 19
    assert (kit / "startup" / "client.key").read_bytes() == key


def test_an_authority_signs_no_second_key_no_stranger_and_no_other_study(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    authority = make_authority(study, tmp_path / "authority")
    first = ask(study, "north", tmp_path / "north")
    with pytest.raises(InputError, match=r"must have a certificate to renew, got none"):
        authority.sign(Request.read(first), renew=True)
    authority.sign(Request.read(first))
    again = Request.read(ask(study, "north", tmp_path / "another-north"))
    with pytest.raises(InputError, match=r"'north' must not have a certificate yet"):
        authority.sign(again)
    with pytest.raises(InputError, match=r"must be coordinator, runner, north, .* got 'west'"):
        ask(study, "west", tmp_path / "west")
    (tmp_path / "other").mkdir()
    other = write_study(tmp_path / "other", privacy={"epsilon": 50.0})
    with pytest.raises(InputError, match=r"got one from 'south' in study"):
        authority.sign(Request.read(ask(other, "south", tmp_path / "other-south")))
    text = first.read_bytes()
    (tmp_path / "altered.csr").write_bytes(text[:200] + b"AAAA" + text[204:])
    with pytest.raises(InputError, match=r"must be a request made by"):
        Request.read(tmp_path / "altered.csr")
    key = certificates.read_key(tmp_path / "north" / "startup" / kits.NEXT_KEY)
    (tmp_path / "south.csr").write_bytes(certificates.new_request(study, "south", key))
    with pytest.raises(InputError, match=r"a key of its own, got that of 'north' from 'south'"):
        authority.sign(Request.read(tmp_path / "south.csr"))


def test_a_kit_takes_its_own_certificate_of_its_own_authority_and_no_other(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    authority = make_authority(study, tmp_path / "authority")
    foreign = make_authority(study, tmp_path / "foreign")
    for party in ("north", "south"):
        request = Request.read(ask(study, party, tmp_path / party))
        authority.sign(request)
        foreign.sign(request)
    with pytest.raises(InputError, match=r"got one without its certificate"):
        kit_study(tmp_path / "north")
    with pytest.raises(InputError, match=r"must certify the key that was made in"):
        accept(tmp_path / "north", authority.signed("south"))
    accept(tmp_path / "north", authority.signed("north"))
    with pytest.raises(InputError, match=r"of the authority that signed before"):
        accept(tmp_path / "north", foreign.signed("north"))
    mixed = Bundle(party=Bundle.read(authority.signed("south")).party, authority=foreign.certificate)
    (tmp_path / "mixed.crt").write_bytes(mixed.text())
    with pytest.raises(InputError, match=r"must be a certificate signed by"):
        accept(tmp_path / "south", tmp_path / "mixed.crt")
    shutil.rmtree(tmp_path / "south" / "startup")
    (tmp_path / "south" / "south.csr").unlink()
    with pytest.raises(InputError, match=r"must hold the request that was signed, got none"):
        accept(tmp_path / "south", authority.signed("south"))


def test_key_certificate_and_authority_of_a_kit_must_belong_together(tmp_path: Path) -> None:
    """A party whose files do not match could never connect, and would try without end."""
    study = write_study(tmp_path)
    make_kits(study, tmp_path / "kits")
    make_kits(study, tmp_path / "foreign")
    startup = tmp_path / "kits" / "north" / "startup"
    check_certificate(tmp_path / "kits" / "north")
    for wrong in ("south/startup/client.key", "south/startup/client.crt"):
        kept = (startup / Path(wrong).name).read_bytes()
        shutil.copyfile(tmp_path / "kits" / wrong, startup / Path(wrong).name)
        with pytest.raises(InputError, match="must belong together"):
            check_certificate(tmp_path / "kits" / "north")
        (startup / Path(wrong).name).write_bytes(kept)
    shutil.copyfile(tmp_path / "foreign" / "north" / "startup" / "rootCA.pem", startup / "rootCA.pem")
    with pytest.raises(InputError, match="must belong together"):
        check_certificate(tmp_path / "kits" / "north", with_key=False)
    (startup / "client.key").unlink()
    with pytest.raises(InputError, match="must be a private key"):
        check_certificate(tmp_path / "kits" / "north")
