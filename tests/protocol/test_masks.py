"""Masks cancel over all silos of a session, hide every part of it, and are used once."""

import numpy as np
import pytest

from fedpower.protocol.messages import Member, Session
from fedpower.protocol.secure import MaskChain, new_exchange_key, total


def masks_of(count):
    """Return the masks of so many silos."""
    secrets = [new_exchange_key() for _ in range(count)]
    members = tuple(
        Member(silo=f"silo-{i}", n_rows=1, key=each.public_key().public_bytes_raw(), signature=bytes(64))
        for i, each in enumerate(secrets)
    )
    session = Session(study="s", run="r", attempt=0, members=members)
    return [MaskChain(f"silo-{i}", session, secret) for i, secret in enumerate(secrets)]


@pytest.mark.parametrize("count", [2, 3, 7])
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
