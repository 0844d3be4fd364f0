"""A silo of a secure sum against a coordinator that lies: what leaves, and what the ledger says."""

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from private_silos import refused
from secure_silos import (
    EPSILON,
    KEYS,
    OTHERS,
    RUN,
    SEVERAL,
    SIZES,
    STUDY,
    called,
    masked_moment,
    parties,
    party,
    query_for,
    session_of,
    study_of,
    words_of,
)

from fedpower.protocol.messages import Enrol, Enrolment, KeyGone, Member, OpenSession, Refusal, Session
from fedpower.protocol.secure import Identity, new_exchange_key, signed_content, total


@pytest.fixture
def there():
    return parties(STUDY)


def member(silo, n_rows, *, key=None, attempt=0, identity=None, study=STUDY):
    key = key or new_exchange_key().public_key().public_bytes_raw()
    made = Member(silo=silo, n_rows=n_rows, key=key, signature=b"")
    content = signed_content(made, study.digest, RUN, attempt)
    return replace(made, signature=(identity or KEYS[silo]).sign(content))


def put(session, *members):
    """Return the session with these in the places of their silos, or at its end."""
    names = {each.silo: each for each in members}
    places = [names.pop(each.silo, each) for each in session.members]
    return replace(session, members=(*places, *names.values()))


def test_any_flipped_bit_of_a_session_is_refused_and_costs_nothing(there):
    session = called(STUDY, there)
    north = there["north"]
    raw = msgspec.msgpack.encode(session)
    for position in range(len(raw)):
        for bit in range(8) if position % 16 == 0 else (position % 8,):
            bad = bytearray(raw)
            bad[position] ^= 1 << bit
            try:
                read = msgspec.msgpack.decode(bad, type=Session)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            assert read != session
            assert isinstance(north.upload(read), Refusal), (position, bit)
    assert north.charges == 0
    words_of(north.upload(session))  # and the key was not spent by any of them
    assert north.charges == 1


LIES = {
    "no rows": (lambda s: put(s, member("west", 0)), "signed by its silo"),
    "a stranger": (lambda s: put(s, member("center", 9, identity=Identity.new())), "silos of the study"),
    "another's name": (lambda s: put(s, member("west", 100, identity=Identity.new())), "signed by its silo"),
    "another's key": (lambda s: put(s, member("south", 150, key=s.members[0].key)), "its own key"),
    "a key that gives no secret": (lambda s: put(s, member("west", 100, key=bytes(32))), "gives a secret"),
    "an earlier attempt's": (lambda s: put(s, member("west", 100, attempt=1)), "signed by its silo"),
    "a silo twice": (lambda s: replace(s, members=(*s.members, s.members[0])), "each once"),
    "a silo four times": (lambda s: replace(s, members=s.members[:1] * 4), "each once"),
    "another order": (lambda s: replace(s, members=s.members[::-1]), "each once"),
    "one silo": (lambda s: replace(s, members=s.members[:1]), "at least 2 silos"),
    "no silo": (lambda s: replace(s, members=()), "got 0"),
    "without it": (lambda s: replace(s, members=s.members[1:]), "with its number of rows"),
    "another size of it": (lambda s: put(s, member("north", 299)), "with its number of rows"),
    "another key of it": (lambda s: put(s, member("north", 300)), None),
    "another study": (lambda s: replace(s, study="0" * 64), "study and run"),
    "another run": (lambda s: replace(s, run="other"), "study and run"),
    "another attempt": (lambda s: replace(s, attempt=1), "signed by its silo"),
}


@pytest.mark.parametrize(("lie", "words"), LIES.values(), ids=LIES)
def test_a_session_that_cannot_be_is_refused_and_costs_nothing(there, lie, words):
    session, north = called(STUDY, there), there["north"]
    answer = north.upload(lie(session))
    assert answer == KeyGone() if words is None else refused(answer, words)
    assert north.charges == 0
    assert refused(north.upload(session, run="other"), "study and run")


@pytest.mark.parametrize("study", [STUDY, SEVERAL], ids=["one sum", "three sums"])
def test_a_second_roll_with_the_same_key_is_refused_and_the_first_gets_the_same_bytes_and_one_charge(study):
    """Two sums over different sets of silos, or one sum twice, never share a key."""
    there = parties(study)
    presents, north = {name: each.present() for name, each in there.items()}, there["north"]
    assert north.present() == presents["north"]
    whole = session_of(study, presents)
    part = session_of(study, {name: presents[name] for name in ("north", "south", "east")})
    first = words_of(north.ask(query_for(study, whole)))
    for _ in range(2):
        assert refused(north.ask(query_for(study, part)), "in one session only")
        assert np.array_equal(words_of(north.ask(query_for(study, whole))), first)
    assert refused(north.ask(OpenSession(attempt=0)), "must not be used twice")
    assert north.charges == 1
    chain = north.silo.releases.sessions.attempt
    assert chain.secret is None  # it is dead after the upload


def test_a_key_is_bound_to_its_roll_though_the_ledger_could_not_pay(there):
    presents, north = {name: each.present() for name, each in there.items()}, there["north"]
    north.ledger.set_cap(EPSILON / 2, 1e-6)
    part = session_of(STUDY, {name: presents[name] for name in ("north", "south")})
    assert refused(north.upload(session_of(STUDY, presents)), "this release needs", "left")
    assert refused(north.upload(part), "in one session only")
    assert north.charges == 0


def test_silos_that_are_asked_about_different_rolls_or_in_different_words_sum_to_noise(there):
    presents = {name: each.present() for name, each in there.items()}
    whole = session_of(STUDY, presents)
    part = session_of(STUDY, {name: presents[name] for name in ("north", "south", "east")})
    rolls = {"north": part, "south": part, "east": whole, "west": whole}
    uploads = {name: words_of(there[name].upload(roll)) for name, roll in rolls.items()}
    chosen = [["north", "south"], ["north", "south", "east"], [*SIZES], ["east", "west"]]
    sums = [total([uploads[name] for name in names]) for names in chosen]
    there = parties(SEVERAL)
    session = called(SEVERAL, there)
    asked = {name: query_for(SEVERAL, session, 0, OTHERS[0] if name == "west" else None) for name in SIZES}
    sent = [words_of(there[name].ask(body)) for name, body in asked.items()]
    for summed in (*sums, total(sent), total(sent[:3])):
        # Uniform words: the median of 18 magnitudes is below 2⁵⁷ with probability below 1e-8.
        assert np.median(np.abs(summed.astype(np.float64))) > 2.0**57


def test_what_cannot_be_paid_is_refused_when_a_session_is_called_and_costs_nobody_anything(there):
    west = there["west"]
    assert isinstance(west.ask(Enrol()), Enrolment)
    west.ledger.set_cap(EPSILON / 2, 1e-6)
    assert refused(west.ask(OpenSession(attempt=0)), "this release needs", "left")
    assert all(each.charges == 0 for each in there.values())
    west.ledger.set_cap(EPSILON, 1e-6)
    words_of(west.upload(called(STUDY, there)))
    assert refused(west.ask(OpenSession(attempt=1)), "this release needs", "left")
    assert refused(west.ask(Enrol(), run="another run"), "this release needs", "left")
    assert west.ledger.spent().epsilon <= EPSILON * (1 + 1e-9)


@pytest.mark.parametrize("study", [STUDY, SEVERAL], ids=["one sum", "three sums"])
def test_each_attempt_is_charged_and_more_than_agreed_are_refused(study):
    """Counted by its first sum, from the ledger, for these rows."""
    there, seen = parties(study), set()
    for attempt in range(study.attempts):
        north = there["north"]
        session = called(study, there, attempt=attempt)
        assert north.present(attempt).charged == north.charges == attempt
        answers = [each.ask(query_for(study, session)) for each in there.values()]
        seen |= {words_of(each).tobytes() for each in answers}
        assert {each.charged for each in answers} == {attempt + 1} == {north.charges}
        there["north"] = party("north", study, ledger=north.ledger)
    assert len(seen) == study.attempts * len(SIZES)
    for body in (Enrol(), OpenSession(attempt=study.attempts)):
        for name in (RUN, "another run"):
            assert refused(there["north"].ask(body, run=name), "charged for 3 on these rows")
    assert all(each.charges == study.attempts for each in there.values())
    assert party("north", study, ledger=there["north"].ledger, version="2").present().charged == 0


def test_a_session_called_before_the_last_attempt_was_charged_is_refused_after_it():
    study = study_of(attempts=1)
    others = parties(study)
    north = others.pop("north")
    twin = party("north", study, ledger=north.ledger)
    first, second = (called(study, {"north": each, **others}) for each in (north, twin))
    words_of(north.upload(first))
    assert refused(twin.upload(second), "stay within its agreed epsilon")
    assert north.charges == 1


def test_sizes_that_would_overflow_the_ring_are_refused_before_anything_is_charged():
    study = study_of(epsilon=50.0)
    there = parties(study, attempts=50)
    session = called(study, there)
    liars = [member(each.silo, 2**54, key=each.key, study=study) for each in session.members[1:]]
    assert refused(there["north"].upload(put(session, *liars)), "2**62 whole numbers")
    assert there["north"].charges == 0
    words_of(there["north"].upload(session))  # the true sizes fit


@pytest.mark.parametrize("value", [True, 0.0, "0", None, [], 2.5, 7, b"", {}])
def test_what_is_no_attempt_or_no_session_never_reaches_a_silo(there, value):
    if value != 7:
        assert refused(there["north"].ask(OpenSession(attempt=value)), "fields of its kind")
    if value is not None:
        assert refused(there["north"].ask(masked_moment(value)), "fields of its kind")
    assert refused(there["north"].ask(OpenSession(attempt=-1)), "numbered 0, 1, …")
