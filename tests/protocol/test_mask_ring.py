"""Past a hundred silos masks are shared with some of the others: connected, uniform, exact."""

import itertools
import math

import numpy as np
import pytest
from msgspec.structs import replace
from secure_silos import study_of

from fedpower.errors import ProtocolError
from fedpower.protocol.secure import (
    COMPLETE_UP_TO,
    Identity,
    MaskChain,
    Member,
    PairSecrets,
    Session,
    check_session,
    exchanged,
    n_neighbours,
    new_exchange_key,
    partners,
    signed_content,
    total,
)


def bare_session(n_silos, neighbours, *, attempt=0, keys=None):
    keys = keys or [i.to_bytes(32, "little") for i in range(n_silos)]
    members = tuple(
        Member(silo=f"silo-{i}", n_rows=1, key=key, signature=bytes(64)) for i, key in enumerate(keys)
    )
    return Session(study="s", run="r", attempt=attempt, members=members, neighbours=neighbours)


def masks_of(count, neighbours=None):
    """Return the masks of so many silos."""
    secrets = [new_exchange_key() for _ in range(count)]
    session = bare_session(count, neighbours, keys=[each.public_key().public_bytes_raw() for each in secrets])
    return [MaskChain(f"silo-{i}", session, secret) for i, secret in enumerate(secrets)]


def large_study(keys):
    return study_of(n_features=3, identities=tuple(keys.items()))


def is_connected(session, without):
    left = set(range(len(session.members))) - set(without)
    reached, open_ = set(), [min(left)]
    while open_:
        at = open_.pop()
        if at not in reached:
            reached.add(at)
            open_ += [other for other in partners(session)[at] if other in left]
    return reached == left


def test_small_sessions_share_masks_between_all():
    for count in (2, 20, COMPLETE_UP_TO):
        assert n_neighbours(count, 1) is None
    session = bare_session(5, None)
    assert partners(session)[2] == (0, 1, 3, 4)


@pytest.mark.parametrize(("count", "colluders"), [(101, 1), (300, 1), (300, 99), (1000, 5)])
def test_everybody_has_the_same_number_of_partners_and_they_agree(count, colluders):
    k = n_neighbours(count, colluders)
    session = bare_session(count, k)
    near = [set(each) for each in partners(session)[:1000]]
    assert {len(each) for each in near} == {k}
    for own, each in enumerate(near):
        assert own not in each
        assert all(own in partners(session)[other] for other in list(each)[:3])


def test_the_number_of_neighbours_keeps_the_stated_probability():
    for count in (101, 300, 1000, 10_000):
        k = n_neighbours(count, 1)
        exponent = 2 * math.log2(count) - 1 + 40
        assert exponent - k * math.log2(3) <= -40 < exponent - (k - 2) * math.log2(3)
        assert k < 80
    assert n_neighbours(300, 99) == 100  # one more than may collude: for certain
    assert n_neighbours(300, 101) is None  # more than a third


def test_fewer_colluders_than_neighbours_never_part_the_others():
    session = bare_session(9, 4)
    for without in itertools.combinations(range(9), 3):
        assert is_connected(session, without)
    assert not all(is_connected(session, without) for without in itertools.combinations(range(9), 4))


@pytest.mark.slow
def test_a_third_of_the_silos_does_not_part_the_others():
    rng = np.random.default_rng(0)
    k = n_neighbours(150, 1)
    for attempt in range(200):
        session = bare_session(150, k, attempt=attempt)
        assert is_connected(session, rng.choice(150, size=50, replace=False).tolist())


def test_the_ring_depends_on_every_key_and_on_the_attempt():
    session = bare_session(150, 60)
    other_key = replace(session.members[7], key=bytes(range(32)))
    changed = replace(session, members=(*session.members[:7], other_key, *session.members[8:]))
    for other in (changed, replace(session, attempt=1), replace(session, run="other")):
        same = sum(partners(session)[own] == partners(other)[own] for own in range(150))
        assert same == 0


@pytest.mark.parametrize("count", [2, 3, 7, pytest.param(120, marks=pytest.mark.slow)])
def test_masks_cancel_and_those_of_a_part_do_not(count):
    words = [np.full(40, i, dtype=np.uint64) for i in range(count)]
    chains = masks_of(count, n_neighbours(count, 1))
    hidden = [chain.masked(each, question=b"") for chain, each in zip(chains, words, strict=True)]
    assert np.array_equal(total(hidden), total(words))
    # Uniform words: the median of 40 magnitudes is below 2⁵⁷ with probability below 1e-12.
    assert np.median(np.abs(total(hidden[:-1]).astype(np.float64))) > 2.0**57


def test_masks_are_of_one_sum_and_one_question_and_are_used_once():
    chain, nothing = masks_of(4)[0], np.zeros(50, dtype=np.uint64)
    seen = [chain.masked(nothing, question=b"a" * 32), chain.masked(nothing, question=b"b" * 32)]
    assert np.array_equal(seen[0], chain.masked(nothing, question=b"a" * 32))
    for _ in range(5):
        before = chain._links
        chain.advance()
        assert not {key for _, key in before} & {key for _, key in chain._links}
        seen.append(chain.masked(nothing, question=b"a" * 32))
    words = np.concatenate(seen)
    assert len(set(words.tolist())) == words.size


def test_a_session_with_another_number_of_neighbours_is_refused():
    count = 101
    keys = {f"silo-{i:03}": Identity.new() for i in range(count)}
    study = large_study({name: key.public for name, key in keys.items()})
    members = []
    for name, identity in keys.items():
        key = new_exchange_key().public_key().public_bytes_raw()
        content = signed_content(study=study.digest, run="r", attempt=0, silo=name, n_rows=1, key=key)
        members.append(Member(silo=name, n_rows=1, key=key, signature=identity.sign(content)))
    right = n_neighbours(count, 1)
    session = Session(study=study.digest, run="r", attempt=0, members=tuple(members), neighbours=right)
    check_session(session, study, "r")
    wrong = [{"neighbours": number} for number in (None, 2, right - 2, right + 2, -right)]
    for change in (*wrong, {"members": session.members[:50]}):
        with pytest.raises(ProtocolError, match="with how many others"):
            check_session(replace(session, **change), study, "r")


def test_silos_of_one_process_compute_the_secret_of_a_pair_once_and_it_is_the_same():
    keys = [new_exchange_key() for _ in range(3)]
    public = [key.public_key().public_bytes_raw() for key in keys]
    shared = PairSecrets()
    for first, second in itertools.permutations(range(3), 2):
        assert shared(keys[first], public[second]) == exchanged(keys[first], public[second])
    assert not shared._waiting  # both of each pair have taken it
