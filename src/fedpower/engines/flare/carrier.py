"""How a message travels inside FLARE's: as bytes under one key, of a bounded size."""

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from fedpower.errors import ProtocolError
from fedpower.protocol.messages import Message, decode, encode

TASK = "fedpower"
"""The one task that silos know."""

KEY = "message"
HEADER_BYTES = 64 * 1024
"""More than any message has besides its arrays."""


def wrapped(message: Message) -> Shareable:
    """Return the message as FLARE carries it."""
    carried = Shareable()
    carried[KEY] = encode(message)
    return carried


def unwrapped(carried: Shareable, *, most_bytes: int) -> Message:
    """Return the message that FLARE carried; refuse what is none or larger than any can be."""
    content = carried.get(KEY) if isinstance(carried, Shareable) else None
    if not isinstance(content, bytes):
        raise ProtocolError("a message must be bytes, got something else; send one of fedpower's")
    if len(content) > most_bytes:
        raise ProtocolError(
            f"a message of this study must have at most {most_bytes} bytes, got {len(content)}; "
            "send what the study asks for"
        )
    return decode(content)


def failed() -> Shareable:
    """Return a reply that says that there is no answer, and nothing else."""
    return make_reply(ReturnCode.BAD_TASK_DATA)
