"""Messages between a silo's node and its vault: a length of eight bytes, then the content."""

import socket
import struct

from fedpower.errors import ProtocolError

_LENGTH = struct.Struct("!Q")


def send(stream: socket.socket, content: bytes) -> None:
    """Send a message."""
    stream.sendall(_LENGTH.pack(len(content)))
    stream.sendall(content)


def receive(stream: socket.socket, *, most_bytes: int) -> bytes | None:
    """Return the next message; None where the other side is gone. A longer one is refused unread."""
    head = _exactly(stream, _LENGTH.size)
    if head is None:
        return None
    (size,) = _LENGTH.unpack(head)
    if size > most_bytes:
        raise ProtocolError(
            f"a message between node and vault must have at most {most_bytes} bytes, got {size}; send "
            "what the study asks for"
        )
    content = _exactly(stream, size)
    return None if content is None else bytes(content)


def _exactly(stream: socket.socket, size: int) -> bytearray | None:
    content = bytearray(size)
    left = memoryview(content)
    while left:
        read = stream.recv_into(left)
        if read == 0:
            return None
        left = left[read:]
    return content
