"""Messages survive the wire unchanged, and nothing altered on it is taken for a message."""

import hashlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpower.errors import ProtocolError
from fedpower.protocol.messages import (
    MAGIC,
    AskMoment,
    AskQuery,
    AskSteps,
    Enrol,
    Enrolment,
    LocalSteps,
    Member,
    Message,
    MomentPart,
    OpenSession,
    QueryAnswer,
    Refusal,
    Session,
    SessionKey,
    decode,
    encode,
    encoded_size,
    rounded,
)

matrices = arrays(
    np.float64, st.tuples(st.integers(0, 5), st.integers(0, 4)), elements=st.floats(allow_nan=False, width=64)
)
vectors = arrays(np.float64, st.integers(0, 6), elements=st.floats(-1e300, 1e300))
integers = st.integers(-(2**63), 2**64 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
member = st.builds(Member, silo=st.text(), n_rows=integers, key=st.binary(), signature=st.binary())
sessions = st.builds(
    Session, study=st.text(), run=st.text(), attempt=integers, members=st.lists(member, max_size=3).map(tuple)
)
bodies = st.one_of(
    st.builds(Enrol),
    st.builds(AskMoment, label=st.sampled_from(["mean", "variances", "moment", "factor"])),
    st.builds(Enrolment, n_rows=st.integers(0, 10**12), n_features=st.integers(0, 10**6)),
    st.builds(MomentPart, values=vectors, mean=st.none() | vectors),
    st.builds(Refusal, reason=st.text()),
    st.builds(
        AskSteps,
        basis=matrices,
        n_local_steps=integers,
        center=st.none() | vectors,
        shift=numbers,
        align=st.sampled_from([None, "procrustes", "sign", "identity"]),
    ),
    st.builds(
        LocalSteps,
        product=matrices,
        basis=st.none() | matrices,
        total_variance=st.none() | numbers,
        misalignment=st.none() | numbers,
    ),
    st.builds(OpenSession, attempt=integers),
    st.builds(
        SessionKey,
        n_rows=st.integers(0, 10**12),
        key=st.binary(max_size=40),
        signature=st.binary(max_size=70),
        charged=integers,
    ),
    st.builds(
        AskQuery, index=integers, label=st.text(), public=st.binary(max_size=9), session=st.none() | sessions
    ),
    st.builds(QueryAnswer, words=arrays(np.uint64, st.integers(0, 9))),
)
messages = st.builds(Message, study=st.text(), run=st.text(), round=integers, silo=st.text(), body=bodies)


def same(first: Message, second: Message) -> bool:
    assert type(first.body) is type(second.body)
    for record, other in ((first, second), (first.body, second.body)):
        for name in record.__struct_fields__:
            if name != "body":
                np.testing.assert_array_equal(getattr(record, name), getattr(other, name))
    return True


@given(messages)
def test_decoding_gives_back_what_was_encoded(message: Message) -> None:
    raw = encode(message)
    assert same(decode(raw), message)
    assert encoded_size(message) == len(raw)


@given(messages, st.data())
def test_a_flipped_bit_or_a_lost_tail_is_noticed(message: Message, data: st.DataObject) -> None:
    raw = bytearray(encode(message))
    position = data.draw(st.integers(0, len(raw) - 1))
    flipped = bytes(raw[:position]) + bytes([raw[position] ^ 1]) + bytes(raw[position + 1 :])
    for corrupt in (flipped, bytes(raw[:position]), b""):
        with pytest.raises(ProtocolError):
            decode(corrupt)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_protocol_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(raw)


def raw_message(kind: str, blob: bytes = b"", **fields: object) -> bytes:
    body = {"kind": kind, **fields}
    header = msgspec.msgpack.encode({"study": "s", "run": "r", "round": 0, "silo": "a", "body": body})
    content = MAGIC + len(header).to_bytes(4, "little") + header + blob
    return content + hashlib.sha256(content).digest()


@pytest.mark.parametrize(
    "fields",
    [
        {"n_local_steps": "3"},
        {"n_local_steps": True},
        {"n_local_steps": 3, "shift": None},
        {"n_local_steps": 3, "align": "other"},
        {"n_local_steps": 3, "center": [1.0]},
        {"n_local_steps": 3, "surprise": 1},
        {},
    ],
)
def test_fields_of_the_wrong_type_are_refused_though_the_checksum_is_right(fields: dict[str, object]) -> None:
    basis = ("<f8", (1, 1))
    assert decode(raw_message("ask-steps", bytes(8), basis=basis, n_local_steps=3))
    with pytest.raises(ProtocolError, match="fields of its kind"):
        decode(raw_message("ask-steps", bytes(8), basis=basis, **fields))


def test_arrays_of_a_decoded_message_are_read_only() -> None:
    message = Message(study="s", run="r", round=0, silo="a", body=MomentPart(values=np.ones(3)))
    decoded = decode(encode(message))
    assert isinstance(decoded.body, MomentPart)
    with pytest.raises(ValueError):
        decoded.body.values[0] = 2.0


def test_numbers_that_float32_can_hold_take_half_the_bytes() -> None:
    wide = np.random.default_rng(0).standard_normal((100, 5))
    narrow = wide.astype(np.float32).astype(np.float64)
    sizes = [
        encoded_size(Message(study="s", run="r", round=0, silo="a", body=LocalSteps(product=each)))
        for each in (wide, narrow)
    ]
    assert sizes[0] - sizes[1] == 4 * 500


def test_words_bytes_and_floats_do_not_stand_in_for_each_other() -> None:
    assert decode(raw_message("query-answer", bytes(8), words=("<u8", [1])))
    assert decode(raw_message("ask-query", index=0, label="a", public=bytes(8)))
    for raw in (
        raw_message("query-answer", bytes(8), words=("<f8", [1])),
        raw_message("query-answer", bytes(8), words=bytes(8)),
        raw_message("query-answer", bytes(8), words=("<u8", [2])),
        raw_message("query-answer", bytes(16), words=("<u8", [1])),
        raw_message("query-answer", bytes(8), words=("<u8", [-1])),
        raw_message("moment-part", bytes(8), values=("<u8", [1])),
        raw_message("moment-part", bytes(8), values=("|O8", [1])),
        raw_message("moment-part", values=bytes(8)),
        raw_message("ask-query", index=0, label="a", public="text"),
        raw_message("ask-query", bytes(8), index=0, label="a", public=("<u8", [1])),
        raw_message("nothing"),
    ):
        with pytest.raises(ProtocolError, match="fields of its kind"):
            decode(raw)


def test_words_arrive_to_the_last_bit_whatever_they_are() -> None:
    words = np.array([0, 1, 2**53 + 1, 2**64 - 1], dtype=np.uint64)
    body = QueryAnswer(words=words, charged=1)
    message = Message(study="s", run="r", round=0, silo="a", body=body)
    decoded = decode(encode(message)).body
    assert isinstance(decoded, QueryAnswer)
    assert decoded.words.dtype == np.uint64
    assert decoded.words.tolist() == words.tolist()
    assert not decoded.words.flags.writeable


@given(st.integers(0, 1000), st.floats(1e-6, 1e3))
def test_rounding_to_float32_is_far_below_the_noise_or_does_not_happen(seed: int, noise_std: float) -> None:
    values = np.random.default_rng(seed).standard_normal(50)
    assert np.abs(rounded(values, noise_std) - values).max() <= noise_std * 2.0**-14


@pytest.mark.parametrize(("value", "noise_std"), [(1.0, 0.0), (1.0, 1e-5), (1e300, 1e299)])
def test_exact_hardly_noised_and_huge_values_are_left_alone(value: float, noise_std: float) -> None:
    values = value * np.random.default_rng(0).standard_normal(50)
    assert rounded(values, noise_std) is values
