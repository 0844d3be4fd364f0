"""Masks cancel over a session, hide every part of it and are used once; identities stay private."""

import itertools
import math
import stat

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from msgspec.structs import replace

from fedpower.exceptions import InputError
from fedpower.protocol.messages import Member, Session
from fedpower.protocol.secure import (
    COMPLETE_UP_TO,
    Identity,
    MaskChain,
    is_signed,
    n_neighbours,
    new_exchange_key,
    partners,
    total,
)


def session_of(keys, attempt=0):
    members = tuple(
        Member(silo=f"silo-{i}", n_rows=1, key=key, signature=bytes(64)) for i, key in enumerate(keys)
    )
    return Session(study="s", run="r", attempt=attempt, members=members)


def bare_session(count, attempt=0):
    return session_of([i.to_bytes(32, "little") for i in range(count)], attempt)


def masks_of(count):
    secrets = [new_exchange_key() for _ in range(count)]
    session = session_of([each.public_key().public_bytes_raw() for each in secrets])
    return [MaskChain(f"silo-{i}", session, secret, 1) for i, secret in enumerate(secrets)]


@pytest.mark.parametrize("count", [2, 3, 7, pytest.param(120, marks=pytest.mark.slow)])
def test_masks_cancel_and_those_of_a_part_do_not(count):
    words = [np.full(40, i, dtype=np.uint64) for i in range(count)]
    chains = masks_of(count)
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


def is_connected(session, count, without):
    left = set(range(len(session.members))) - set(without)
    reached, open_ = set(), [min(left)]
    while open_:
        at = open_.pop()
        if at not in reached:
            reached.add(at)
            open_ += [other for other in partners(session, count)[at] if other in left]
    return reached == left


@pytest.mark.parametrize(
    ("count", "colluders"), [(5, 1), (COMPLETE_UP_TO, 1), (101, 1), (300, 99), (1000, 5)]
)
def test_all_silos_have_the_same_number_of_partners_and_they_agree(count, colluders):
    k = n_neighbours(count, colluders)
    assert (k == count - 1) == (count <= COMPLETE_UP_TO)
    near = [set(each) for each in partners(bare_session(count), k)]
    assert {len(each) for each in near} == {k}
    assert all(own not in each and all(own in near[other] for other in each) for own, each in enumerate(near))


def test_the_number_of_neighbours_keeps_the_stated_probability():
    for count in (101, 300, 1000, 10_000):
        k = n_neighbours(count, 1)
        exponent = 2 * math.log2(count) - 1 + 40
        assert exponent - k * math.log2(3) <= -40 < exponent - (k - 2) * math.log2(3)
    assert n_neighbours(300, 99) == 100  # one more than may collude: for certain
    assert n_neighbours(300, 101) == 299  # more than a third


def test_fewer_colluders_than_neighbours_never_part_the_others():
    session = bare_session(9)
    for without in itertools.combinations(range(9), 3):
        assert is_connected(session, 4, without)
    assert not all(is_connected(session, 4, without) for without in itertools.combinations(range(9), 4))


@pytest.mark.slow
def test_a_third_of_the_silos_does_not_part_the_others():
    rng = np.random.default_rng(0)
    for attempt in range(200):
        session = bare_session(150, attempt)
        assert is_connected(session, n_neighbours(150, 1), rng.choice(150, size=50, replace=False).tolist())


def test_the_ring_depends_on_every_key_and_on_the_attempt():
    session = bare_session(150)
    other_key = replace(session.members[7], key=bytes(range(32)))
    changed = replace(session, members=(*session.members[:7], other_key, *session.members[8:]))
    for other in (changed, replace(session, attempt=1), replace(session, run="other")):
        assert not set(partners(session, 60)) & set(partners(other, 60))


# --- identities: made, kept in private files, read back, and refused where they are not ------------------


def test_a_saved_identity_is_private_never_overwritten_and_the_same_when_read(tmp_path):
    path = tmp_path / "north.pem"
    made = Identity.new()
    made.save(path)
    before = path.read_bytes()
    assert before.decode().splitlines()[1] not in repr(made)
    with pytest.raises(InputError, match="must be a new file"):
        Identity.new().save(path)
    assert path.read_bytes() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    read = Identity.load(path)
    assert read.public == made.public
    assert is_signed(bytes.fromhex(made.public), read.sign(b"words"), b"words")
    assert not is_signed(bytes.fromhex(made.public), read.sign(b"words"), b"other words")
    assert not is_signed(bytes.fromhex(Identity.new().public), read.sign(b"words"), b"words")


def test_files_that_are_no_private_identity_are_refused(tmp_path):
    path = tmp_path / "north.pem"
    with pytest.raises(InputError, match="must be a readable file"):
        Identity.load(path)
    Identity.new().save(path)
    path.chmod(0o644)
    with pytest.raises(InputError, match="must be private to its owner but has mode 0644"):
        Identity.load(path)
    path.chmod(0o600)
    form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    other = new_exchange_key().private_bytes(*form)
    for content in (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", other):
        path.write_bytes(content)
        with pytest.raises(InputError, match="must hold an Ed25519 private key"):
            Identity.load(path)
