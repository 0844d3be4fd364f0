"""Messages survive the wire unchanged, and nothing altered on it is taken for a message."""

import hashlib
import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpower.errors import ProtocolError
from fedpower.protocol.messages import (
    MAGIC,
    AskMean,
    AskQuery,
    AskSteps,
    CallRoll,
    Enrol,
    Enrolment,
    LocalSteps,
    MeanRow,
    Message,
    Present,
    QueryAnswer,
    Refusal,
    decode,
    encode,
    encoded_size,
)

matrices = arrays(
    np.float64, st.tuples(st.integers(0, 5), st.integers(0, 4)), elements=st.floats(allow_nan=False, width=64)
)
vectors = arrays(np.float64, st.integers(0, 6), elements=st.floats(-1e300, 1e300))
numbers = st.floats(allow_nan=False, allow_infinity=False)
bodies = st.one_of(
    st.builds(Enrol),
    st.builds(AskMean),
    st.builds(Enrolment, n_rows=st.integers(0, 10**12), n_features=st.integers(0, 10**6)),
    st.builds(MeanRow, mean=vectors),
    st.builds(Refusal, reason=st.text()),
    st.builds(
        AskSteps,
        basis=matrices,
        n_local_steps=st.integers(),
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
    st.builds(CallRoll, attempt=st.integers()),
    st.builds(
        Present, n_rows=st.integers(0, 10**12), key=st.binary(max_size=40), signature=st.binary(max_size=70)
    ),
    st.builds(
        AskQuery,
        index=st.integers(),
        label=st.text(),
        public=st.binary(max_size=9),
        roll=st.binary(max_size=200),
    ),
    st.builds(QueryAnswer, words=arrays(np.uint64, st.integers(0, 9))),
)
messages = st.builds(
    Message, study=st.text(), run=st.text(), round=st.integers(), silo=st.text(), body=bodies
)


def same(first: Message, second: Message) -> bool:
    """Compare field by field: two wrongs in encode and decode must not make a right."""
    assert type(first.body) is type(second.body)
    for record, other in ((first, second), (first.body, second.body)):
        for field in fields(record):
            if field.name != "body":
                np.testing.assert_array_equal(getattr(record, field.name), getattr(other, field.name))
    return True


@given(messages)
def test_decoding_gives_back_what_was_encoded(message: Message) -> None:
    assert same(decode(encode(message)), message)


@given(messages)
def test_the_size_is_told_without_encoding(message: Message) -> None:
    assert encoded_size(message) == len(encode(message))


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


@pytest.mark.parametrize(
    "plain",
    [
        {"n_local_steps": "3", "shift": 0.0, "align": None, "center": None},
        {"n_local_steps": True, "shift": 0.0, "align": None, "center": None},
        {"n_local_steps": 3, "shift": None, "align": None, "center": None},
        {"n_local_steps": 3, "shift": 0.0, "align": "other", "center": None},
        {"n_local_steps": 3, "shift": 0.0, "align": None, "center": [1.0]},
        {"n_local_steps": 3, "surprise": 1},
    ],
)
def test_fields_of_the_wrong_type_are_refused_though_the_checksum_is_right(plain: dict[str, object]) -> None:
    header = json.dumps(
        {
            "study": "s",
            "run": "r",
            "round": 0,
            "silo": "a",
            "kind": "ask-steps",
            "plain": plain,
            "arrays": [["basis", [1, 1], "<f8"]],
        }
    ).encode()
    content = b"fedpower1\n" + len(header).to_bytes(4, "little") + header + bytes(8)
    with pytest.raises(ProtocolError, match="fields of its kind"):
        decode(content + hashlib.sha256(content).digest())


def test_arrays_of_a_decoded_message_are_read_only() -> None:
    message = Message(study="s", run="r", round=0, silo="a", body=MeanRow(mean=np.ones(3)))
    decoded = decode(encode(message))
    assert isinstance(decoded.body, MeanRow)
    with pytest.raises(ValueError):
        decoded.body.mean[0] = 2.0


def test_numbers_that_float32_can_hold_take_half_the_bytes() -> None:
    wide = np.random.default_rng(0).standard_normal((100, 5))
    narrow = wide.astype(np.float32).astype(np.float64)
    sizes = [
        encoded_size(Message(study="s", run="r", round=0, silo="a", body=LocalSteps(product=each)))
        for each in (wide, narrow)
    ]
    assert sizes[0] - sizes[1] == 4 * 500


def of_kind(kind: str, arrays: list[list[object]], blob: bytes, **plain: object) -> bytes:
    header = json.dumps(
        {"study": "s", "run": "r", "round": 0, "silo": "a", "kind": kind, "plain": plain, "arrays": arrays}
    ).encode()
    content = MAGIC + len(header).to_bytes(4, "little") + header + blob
    return content + hashlib.sha256(content).digest()


def test_words_bytes_and_floats_do_not_stand_in_for_each_other() -> None:
    assert decode(of_kind("query", [["words", [1], "<u8"]], bytes(8), charged=1))
    assert decode(of_kind("ask-query", [["roll", [8], "bytes"]], bytes(8), index=0, label="a"))
    for raw in (
        of_kind("query", [["words", [1], "<f8"]], bytes(8), charged=1),
        of_kind("query", [["words", [8], "bytes"]], bytes(8), charged=1),
        of_kind("mean", [["mean", [1], "<u8"]], bytes(8)),
        of_kind("mean", [["mean", [8], "bytes"]], bytes(8)),
        of_kind("ask-query", [["roll", [1], "<u8"]], bytes(8), index=0, label="a"),
        of_kind("ask-query", [], b"", roll="text", index=0, label="a"),
        of_kind("ask-query", [["roll", [9], "bytes"]], bytes(8), index=0, label="a"),
        of_kind("ask-query", [["roll", [2, 4], "bytes"]], bytes(8), index=0, label="a"),
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


def test_no_other_type_is_read_from_the_wire() -> None:
    message = Message(study="s", run="r", round=0, silo="a", body=MeanRow(mean=np.ones(3) / 3))
    raw = encode(message)[: -len(hashlib.sha256().digest())].replace(b"<f8", b"|O8")
    with pytest.raises(ProtocolError):
        decode(raw + hashlib.sha256(raw).digest())
