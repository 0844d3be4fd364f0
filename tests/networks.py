"""A network in virtual time: messages are lost, late, repeated, out of order or altered."""

import heapq
import itertools
import random
from collections.abc import Callable

Deliver = Callable[[bytes], None]

USUAL, LATEST = 1.0, 60.0
"""How long a message takes, and a late one at most."""


class Network:
    """Carries bytes; each message meets a fault with a given probability, drawn from ``chance``.

    Nobody sleeps: :meth:`step` delivers what is next and puts the clock forward.
    """

    def __init__(self, chance: random.Random, *, faults: float = 0.3) -> None:
        self.now = 0.0
        self.n_events = 0
        self._chance = chance
        self._faults = faults
        self._under_way: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def send(self, content: bytes, deliver: Deliver) -> None:
        """Take a message; what becomes of it is for chance to say."""
        fault = None
        if self._chance.random() < self._faults:
            fault = self._chance.choice(("lost", "late", "repeated", "altered"))
        if fault == "lost":
            return
        if fault == "altered":
            turned = bytearray(content)
            turned[self._chance.randrange(len(turned))] ^= 1 << self._chance.randrange(8)
            content = bytes(turned)
        copies = self._chance.randrange(2, 4) if fault == "repeated" else 1
        for _ in range(copies):
            slow = fault in ("late", "repeated")
            delay = self._chance.uniform(USUAL / 2, LATEST if slow else 2 * USUAL)
            self.call(delay, lambda: deliver(content))

    def call(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._under_way, (self.now + delay, next(self._number), action))

    def step(self) -> None:
        self.now, _, action = heapq.heappop(self._under_way)
        self.n_events += 1
        action()
