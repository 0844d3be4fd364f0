"""The protocol, sans-IO: messages, silo, coordinator and solvers; one implementation for every engine."""

from fedpower.protocol.coordinator import Coordinator, Receipt
from fedpower.protocol.messages import Message, decode, encode, encoded_size
from fedpower.protocol.schedule import Schedule, decaying, every, explicit, halving
from fedpower.protocol.silo import Silo
from fedpower.protocol.study import Study

__all__ = [
    "Coordinator",
    "Message",
    "Receipt",
    "Schedule",
    "Silo",
    "Study",
    "decaying",
    "decode",
    "encode",
    "encoded_size",
    "every",
    "explicit",
    "halving",
]
