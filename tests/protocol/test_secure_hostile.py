"""A silo of a secure sum against a coordinator that lies: what leaves, and what the ledger says."""

import multiprocessing
import os
import signal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from secure_silos import (
    EPSILON,
    KEYS,
    RUN,
    SIZES,
    called,
    cap,
    masked_moment,
    parties,
    party,
    session_of,
    study_of,
    words_of,
)

from fedpower.errors import ProtocolError
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.messages import (
    AskQuery,
    Enrol,
    Enrolment,
    KeyGone,
    Member,
    Message,
    OpenSession,
    QueryAnswer,
    Refusal,
    Session,
    decode,
    encode,
)
from fedpower.protocol.secure import Identity, new_exchange_key, signed_content, total

STUDY = study_of()
fork = multiprocessing.get_context("fork")


@pytest.fixture
def there():
    return parties(STUDY)


def refused(answer, *words):
    assert isinstance(answer, Refusal), answer
    assert "\n" not in answer.reason
    assert all(word in answer.reason for word in words), answer.reason
    return True


def none_charged(there):
    return all(each.charges == 0 for each in there.values())


def stranger(silo, n_rows=10, *, attempt=0, identity=None):
    key = new_exchange_key().public_key().public_bytes_raw()
    content = signed_content(study=STUDY.digest, run=RUN, attempt=attempt, silo=silo, n_rows=n_rows, key=key)
    signer = identity or Identity.new()
    return Member(silo=silo, n_rows=n_rows, key=key, signature=signer.sign(content))


def changed(session, silo, **fields):
    places = tuple(replace(p, **fields) if p.silo == silo else p for p in session.members)
    return replace(session, members=places)


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


@given(name=st.sampled_from([*SIZES]), field=st.sampled_from(["key", "signature"]), bit=st.integers(0, 511))
def test_any_flipped_bit_of_a_key_or_signature_is_refused_by_every_silo(name, field, bit):
    there = parties(STUDY)
    session = called(STUDY, there)
    place = next(each for each in session.members if each.silo == name)
    value = bytearray(getattr(place, field))
    bit %= 8 * len(value)
    value[bit // 8] ^= 1 << bit % 8
    bad = changed(session, name, **{field: bytes(value)})
    for each in there.values():
        assert refused(each.upload(bad), "must be signed by its silo", name)
    assert none_charged(there)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempt": False},
        {"attempt": 0.0},
        {"members": ({"silo": "north", "n_rows": 300.0, "key": b"", "signature": b""},)},
        {"members": ({"silo": "north", "n_rows": 300, "key": "", "signature": b""},)},
        {"extra": 1},
        {"neighbours": "4"},
    ],
)
def test_a_session_with_fields_of_another_type_is_no_message(there, wrong):
    session = {**msgspec.to_builtins(called(STUDY, there), builtin_types=(bytes,)), **wrong}
    ask = AskQuery(index=0, label="moment", session=session)
    with pytest.raises(ProtocolError, match="fields of its kind"):
        decode(encode(Message(study=STUDY.digest, run=RUN, round=1, silo="north", body=ask)))


def test_a_session_with_a_member_without_rows_is_refused(there):
    session = called(STUDY, there)
    empty = stranger("west", 0, identity=KEYS["west"])
    assert refused(there["north"].upload(replace(session, members=(*session.members[:-1], empty))), "signed")
    assert none_charged(there)


def test_a_session_with_a_member_that_the_study_does_not_list_is_refused(there):
    session = called(STUDY, there)
    longer = replace(session, members=(*session.members, stranger("center")))
    assert refused(there["north"].upload(longer), "silos of the study")
    posing = replace(session, members=(*session.members[:-1], stranger("west", SIZES["west"])))
    assert refused(there["north"].upload(posing), "signed by its silo", "west")
    assert none_charged(there)


def test_a_session_with_a_member_twice_or_out_of_order_is_refused(there):
    session = called(STUDY, there)
    for places in ((*session.members, session.members[0]), session.members[::-1], (session.members[0],) * 4):
        assert refused(there["north"].upload(replace(session, members=places)), "each once")
    again = stranger("south", SIZES["south"], identity=KEYS["south"])
    same_key = replace(again, key=session.members[0].key)
    content = signed_content(
        study=STUDY.digest, run=RUN, attempt=0, silo="south", n_rows=150, key=same_key.key
    )
    shared = replace(same_key, signature=KEYS["south"].sign(content))
    bad = replace(session, members=(session.members[0], shared, *session.members[2:]))
    assert refused(there["north"].upload(bad), "a key of its own")
    assert none_charged(there)


def test_a_session_below_the_fewest_silos_is_refused(there):
    session = called(STUDY, there)
    alone = replace(session, members=session.members[:1])
    assert refused(there["north"].upload(alone), "the 2 silos that the study asks for", "got 1")
    assert refused(there["north"].upload(replace(session, members=())), "got 0")
    assert none_charged(there)


def test_a_session_without_the_silo_or_with_another_size_or_key_for_it_is_refused(there):
    session = called(STUDY, there)
    without = replace(session, members=session.members[1:])
    assert refused(there["north"].upload(without), "have it with its number of rows")
    smaller = stranger("north", 299, identity=KEYS["north"])
    other = replace(session, members=(smaller, *session.members[1:]))
    assert refused(there["north"].upload(other), "have it with its number of rows")
    not_its_key = stranger("north", 300, identity=KEYS["north"])
    stolen = replace(session, members=(not_its_key, *session.members[1:]))
    assert there["north"].upload(stolen) == KeyGone()
    assert none_charged(there)


def test_a_session_of_another_study_run_or_attempt_is_refused(there):
    session = called(STUDY, there)
    for lie in ({"study": "0" * 64}, {"run": "other"}):
        assert refused(there["north"].upload(replace(session, **lie)), "study and run")
    assert refused(there["north"].upload(session, run="other"), "study and run")
    assert refused(there["north"].upload(replace(session, attempt=1)), "signed by its silo")
    assert none_charged(there)


def test_the_same_roll_gets_the_same_bytes_and_one_charge(there):
    session = called(STUDY, there)
    north = there["north"]
    first = words_of(north.upload(session)).tobytes()
    assert {words_of(north.upload(session)).tobytes() for _ in range(10)} == {first}
    assert north.charges == 1


def test_a_second_roll_with_the_same_key_is_refused_before_and_after_the_upload(there):
    presents = {name: each.present() for name, each in there.items()}
    whole = session_of(STUDY, presents)
    part = session_of(STUDY, {name: presents[name] for name in ("north", "south", "east")})
    first = words_of(there["north"].upload(whole))
    assert refused(there["north"].upload(part), "in one session only")
    assert there["north"].charges == 1
    assert np.array_equal(words_of(there["north"].upload(whole)), first)


def test_a_key_is_bound_to_its_roll_though_the_ledger_could_not_pay():
    poor = parties(STUDY)
    presents = {name: each.present() for name, each in poor.items()}
    poor["north"].ledger.set_cap(EPSILON / 2, 1e-6)
    whole = session_of(STUDY, presents)
    part = session_of(STUDY, {name: presents[name] for name in ("north", "south")})
    assert refused(poor["north"].upload(whole), "would spend", "left")
    assert refused(poor["north"].upload(part), "in one session only")
    assert none_charged(poor)


def test_different_rolls_to_different_silos_sum_to_noise(there):
    presents = {name: each.present() for name, each in there.items()}
    whole = session_of(STUDY, presents)
    part = session_of(STUDY, {name: presents[name] for name in ("north", "south", "east")})
    first = {name: words_of(there[name].upload(part)) for name in ("north", "south")}
    second = {name: words_of(there[name].upload(whole)) for name in ("east", "west")}
    assert all(there[name].charges == 1 for name in SIZES)
    uploads = {**first, **second}
    for chosen in (["north", "south"], ["north", "south", "east"], [*SIZES], ["east", "west"]):
        summed = total([uploads[name] for name in chosen])
        # Uniform words: the median of 22 magnitudes is below 2⁵⁸ with probability below 1e-10.
        assert np.median(np.abs(summed.astype(np.float64))) > 2.0**58


def test_an_earlier_place_of_another_silo_makes_an_attempt_that_nobody_can_read(there):
    first = called(STUDY, there)
    for each in there.values():
        words_of(each.upload(first))
    old_west = first.members[-1]
    presents = {name: there[name].present(attempt=0, run="later") for name in ("north", "south")}
    replayed = Session(
        study=STUDY.digest,
        run="later",
        attempt=0,
        members=(*session_of(STUDY, presents, run="later").members, old_west),
    )
    assert refused(there["north"].upload(replayed, run="later"), "signed by its silo", "west")
    assert there["north"].charges == 1


def test_an_upload_asked_for_without_a_session_call_is_refused(there):
    session = called(STUDY, there)
    fresh = party("north", STUDY)
    assert fresh.upload(session) == KeyGone()
    assert fresh.charges == 0


def test_a_key_is_dead_after_its_upload(there):
    session = called(STUDY, there)
    north = there["north"]
    words_of(north.upload(session))
    assert north.silo.releases.sessions.attempt.secret is None
    assert refused(north.ask(OpenSession(attempt=0)), "must not be used twice")


def test_the_session_call_repeated_before_the_upload_gives_the_same_place(there):
    north = there["north"]
    assert north.present() == north.present()
    assert north.present(attempt=1) != north.present(attempt=0)
    assert north.charges == 0


def test_each_attempt_is_charged_and_more_than_agreed_are_refused(there):
    seen = set()
    for attempt in range(STUDY.attempts):
        session = called(STUDY, there, attempt=attempt)
        seen |= {words_of(each.upload(session)).tobytes() for each in there.values()}
    assert len(seen) == STUDY.attempts * len(SIZES)
    one_more = OpenSession(attempt=STUDY.attempts)
    for ask in (Enrol(), one_more):
        for run in (RUN, "another run"):
            reported = there["north"].ask(ask, run=run)
            assert refused(reported, "charged for 3 of 3 on these rows")
    assert all(each.charges == STUDY.attempts for each in there.values())


def test_a_session_called_before_the_last_attempt_was_charged_is_refused_after_it():
    study = study_of(attempts=1)
    others = parties(study)
    north = others.pop("north")
    twin = party("north", study, ledger=north.ledger)
    first, second = (called(study, {"north": each, **others}) for each in (north, twin))
    words_of(north.upload(first))
    assert refused(twin.upload(second), "keep to the epsilon it agreed on")
    assert north.charges == 1


def test_the_cap_is_kept_whatever_the_study_allows():
    there = {name: party(name, STUDY, ledger=Ledger.in_memory(EPSILON, 1e-6)) for name in SIZES}
    north = there["north"]
    words_of(north.upload(called(STUDY, there)))
    assert refused(north.ask(OpenSession(attempt=1)), "would spend", "left")
    assert refused(north.ask(Enrol(), run="another run"), "would spend", "left")
    assert north.ledger.spent().epsilon <= EPSILON * (1 + 1e-9)


def test_a_silo_that_cannot_pay_says_so_at_the_session_call_and_costs_nobody_anything(there):
    assert isinstance(there["west"].ask(Enrol()), Enrolment)
    there["west"].ledger.set_cap(EPSILON / 2, 1e-6)
    assert refused(there["west"].ask(OpenSession(attempt=0)), "would spend", "left")
    assert none_charged(there)


def test_what_a_silo_tells_about_its_charges_is_what_its_ledger_says(there):
    for attempt in range(STUDY.attempts):
        north = there["north"]
        assert north.present(attempt).charged == north.charges == attempt
        session = called(STUDY, there, attempt=attempt)
        assert north.upload(session).charged == north.charges == attempt + 1
        assert north.upload(session).charged == north.charges == attempt + 1
        there["north"] = party("north", STUDY, ledger=north.ledger)
    other_rows = party("north", STUDY, ledger=there["north"].ledger, version="2")
    assert other_rows.present().charged == 0


def test_sizes_that_would_overflow_the_ring_are_refused_before_anything_is_charged():
    study = study_of(epsilon=50.0)
    there = parties(study, attempts=50)
    session = called(study, there)
    liars = []
    for place in session.members[1:]:
        content = signed_content(
            study=study.digest, run=RUN, attempt=0, silo=place.silo, n_rows=2**54, key=place.key
        )
        liars.append(replace(place, n_rows=2**54, signature=KEYS[place.silo].sign(content)))
    lying = replace(session, members=(session.members[0], *liars))
    assert refused(there["north"].upload(lying), "2**62 whole numbers")
    assert none_charged(there)
    words_of(there["north"].upload(session))  # the true sizes fit


def test_a_key_that_gives_no_secret_is_refused(there):
    presents = {name: each.present() for name, each in there.items()}
    session = session_of(STUDY, presents)
    content = signed_content(study=STUDY.digest, run=RUN, attempt=0, silo="west", n_rows=100, key=bytes(32))
    zero = Member(silo="west", n_rows=100, key=bytes(32), signature=KEYS["west"].sign(content))
    lying = replace(session, members=(*session.members[:-1], zero))
    assert refused(there["north"].upload(lying), "a point that gives a secret")
    assert none_charged(there)


def test_a_negative_attempt_is_refused(there):
    assert refused(there["north"].ask(OpenSession(attempt=-1)), "numbered 0, 1, …")


@pytest.mark.parametrize("value", [True, 0.0, "0", None, [], 2.5, 7, b"", {}])
def test_what_is_no_attempt_or_no_session_never_reaches_a_silo(there, value):
    if value != 7:
        assert refused(there["north"].ask(OpenSession(attempt=value)), "fields of its kind")
    if value is not None:
        assert refused(there["north"].ask(masked_moment(value)), "fields of its kind")


def test_a_query_without_a_session_is_refused(there):
    assert refused(there["north"].ask(masked_moment(None)), "must have a session")
    assert none_charged(there)


def test_after_a_restart_the_stored_bytes_come_again_and_no_new_ones(tmp_path):
    path = tmp_path / "north.ledger"
    Ledger.create(path, epsilon=cap(3)[0], delta=cap(3)[1], silo="north").close()
    others = {name: party(name, STUDY) for name in SIZES if name != "north"}
    with Ledger.open(path) as ledger:
        north = party("north", STUDY, ledger=ledger)
        session = called(STUDY, {"north": north, **others})
        first = words_of(north.upload(session))
    with Ledger.open(path) as ledger:
        restarted = party("north", STUDY, ledger=ledger)
        assert np.array_equal(words_of(restarted.upload(session)), first)
        assert restarted.charges == 1
        other_rows = party("north", STUDY, ledger=ledger, version="2")
        assert other_rows.upload(session) == KeyGone()
        assert other_rows.charges == 1


def test_dead_between_roll_call_and_upload_the_attempt_fails_and_costs_nothing(tmp_path):
    path = tmp_path / "north.ledger"
    Ledger.create(path, epsilon=cap(3)[0], delta=cap(3)[1], silo="north").close()
    others = {name: party(name, STUDY) for name in SIZES if name != "north"}
    with Ledger.open(path) as ledger:
        session = called(STUDY, {"north": party("north", STUDY, ledger=ledger), **others})
    with Ledger.open(path) as ledger:
        restarted = party("north", STUDY, ledger=ledger)
        assert restarted.upload(session) == KeyGone()
        assert restarted.charges == 0
        second = called(STUDY, {"north": restarted, **others}, attempt=1)
        assert isinstance(restarted.upload(second), QueryAnswer)
        assert restarted.charges == 1


def test_killed_between_charge_and_answer_the_same_bytes_come_after_a_restart(tmp_path):
    path = tmp_path / "north.ledger"
    Ledger.create(path, epsilon=cap(3)[0], delta=cap(3)[1], silo="north").close()
    receiver, sender = fork.Pipe(duplex=False)

    def die_after_the_charge():
        others = {name: party(name, STUDY) for name in SIZES if name != "north"}
        with Ledger.open(path) as ledger:
            north = party("north", STUDY, ledger=ledger)
            session = called(STUDY, {"north": north, **others})
            sender.send_bytes(msgspec.msgpack.encode(session))
            words_of(north.upload(session))
            os.kill(os.getpid(), signal.SIGKILL)

    process = fork.Process(target=die_after_the_charge)
    process.start()
    session = msgspec.msgpack.decode(receiver.recv_bytes(), type=Session)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with Ledger.open(path) as ledger:
        restarted = party("north", STUDY, ledger=ledger)
        assert restarted.charges == 1
        first = words_of(restarted.upload(session))
        assert np.array_equal(words_of(restarted.upload(session)), first)
        assert restarted.charges == 1
