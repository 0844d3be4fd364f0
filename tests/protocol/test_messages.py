"""Messages: what is encoded comes back, and any other bytes are refused."""

import hashlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpower.exceptions import ProtocolError
from fedpower.protocol.messages import (
    MAGIC,
    AskMoment,
    AskQuery,
    AskSteps,
    Enrol,
    Enrolment,
    KeyGone,
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

Z = np.arange(12.0).reshape(4, 3) / 7
HUGE = np.array([[np.inf, -1e300], [5e-324, -0.0]])
SESSION = Session(
    study="s", run="é", attempt=2**63, members=(Member(silo="", n_rows=-1, key=bytes(32), signature=b"\0"),)
)
BODIES = [
    Enrol(),
    Enrolment(n_rows=10**12, n_features=0, data_version="2"),
    *(AskMoment(label=label) for label in ("mean", "variances", "covariance", "factor")),
    MomentPart(values=Z[0], mean=Z[1], total_variance=1e300),
    MomentPart(values=np.zeros(0)),
    AskSteps(basis=Z, n_local_steps=2**64 - 1, center=Z[:, 0], shift=0.1, align="sign", pooled=Z, gains=Z[0]),
    AskSteps(basis=np.zeros((0, 4)), n_local_steps=-1),
    LocalSteps(product=HUGE, basis=Z, total_variance=0.5, misalignment=0.0, made_for="r"),
    LocalSteps(product=np.asfortranarray(Z)),
    OpenSession(attempt=-(2**63)),
    SessionKey(n_rows=7, key=bytes(32), signature=bytes(64), charged=3),
    AskQuery(index=2, label="zoom", public=b"\0\xff", session=SESSION),
    QueryAnswer(words=np.array([0, 1, 2**53 + 1, 2**64 - 1], dtype=np.uint64), charged=1, made_for="r"),
    KeyGone(),
    Refusal(reason="é\n\0"),
]
MESSAGES = [
    Message(study="s", run="é" * 40, round=place, silo="", body=body) for place, body in enumerate(BODIES)
]
every = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.body.kind)


@every
def test_decoding_gives_back_what_was_encoded(message):
    raw = encode(message)
    assert encoded_size(message) == len(raw)
    decoded = decode(raw)
    assert type(decoded.body) is type(message.body)
    assert msgspec.structs.replace(decoded, body=message.body) == message
    for name in message.body.__struct_fields__:
        sent, found = getattr(message.body, name), getattr(decoded.body, name)
        np.testing.assert_array_equal(found, sent)
        if isinstance(sent, np.ndarray):
            assert found.dtype == sent.dtype
            assert not found.flags.writeable


@every
def test_a_flipped_bit_or_a_lost_tail_is_noticed(message):
    raw = bytearray(encode(message))
    for position in range(0, len(raw), 5):
        flipped = bytes(raw[:position]) + bytes([raw[position] ^ 1]) + bytes(raw[position + 1 :])
        for corrupt in (flipped, bytes(raw[:position])):
            with pytest.raises(ProtocolError):
                decode(corrupt)


def signed(header: bytes, blob: bytes = b"") -> bytes:
    content = MAGIC + len(header).to_bytes(4, "little") + header + blob
    return content + hashlib.sha256(content).digest()


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_protocol_error(raw):
    for content in (raw, signed(raw)):
        with pytest.raises(ProtocolError):
            decode(content)


@pytest.mark.parametrize(
    "header",
    [b"\x91" * 200_000, b"\x81\xa4body" * 100_000, b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"],
    ids=["deep list", "deep object", "endless object", "endless bytes"],
)
def test_a_header_made_to_break_the_reader_is_refused(header):
    with pytest.raises(ProtocolError):
        decode(signed(header))


def raw_message(kind: str, blob: bytes = b"", **fields: object) -> bytes:
    body = {"kind": kind, **fields}
    return signed(
        msgspec.msgpack.encode({"study": "s", "run": "r", "round": 0, "silo": "a", "body": body}), blob
    )


NO_SESSION = {"study": "s", "run": "r", "attempt": 0, "members": []}


def raw_steps(**fields: object) -> bytes:
    return raw_message("ask-steps", bytes(8), basis=("<f8", (1, 1)), **fields)


@pytest.mark.parametrize(
    "raw",
    [
        *(
            raw_steps(**fields)
            for fields in (
                {"n_local_steps": "3"},
                {"n_local_steps": True},
                {"n_local_steps": 3, "shift": None},
                {"n_local_steps": 3, "align": "other"},
                {"n_local_steps": 3, "center": [1.0]},
                {"n_local_steps": 3, "surprise": 1},
                {},
            )
        ),
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
        *(
            raw_message("ask-query", index=0, label="a", session=NO_SESSION | wrong)
            for wrong in ({"attempt": False}, {"members": [{"silo": "a"}]}, {"extra": 1}, {"neighbours": "4"})
        ),
        raw_message("nothing"),
    ],
)
def test_fields_of_the_wrong_type_are_refused_though_the_checksum_is_right(raw):
    for right in (
        raw_steps(n_local_steps=3),
        raw_message("query-answer", bytes(8), words=("<u8", [1])),
        raw_message("ask-query", index=0, label="a", public=bytes(8), session=NO_SESSION),
    ):
        assert decode(right)
    with pytest.raises(ProtocolError, match="fields of its kind"):
        decode(raw)


def test_numbers_that_float32_can_hold_take_half_the_bytes():
    wide = np.random.default_rng(0).standard_normal((100, 5))
    narrow = wide.astype(np.float32).astype(np.float64)
    sizes = [encoded_size(LocalSteps(product=each)) for each in (wide, narrow)]
    assert sizes[0] - sizes[1] == 4 * 500


@given(st.integers(0, 1000), st.floats(1e-6, 1e3))
def test_rounding_to_float32_is_far_below_the_noise_or_does_not_happen(seed, noise_std):
    values = np.random.default_rng(seed).standard_normal(50)
    assert np.abs(rounded(values, noise_std) - values).max() <= noise_std * 2.0**-14
    for size, small in ((1.0, 0.0), (1.0, 1e-5), (1e300, 1e299)):  # exact, hardly noised, huge
        assert rounded(size * values, small) is not None
        assert np.array_equal(rounded(size * values, small), size * values)
