"""FLARE's links by themselves: rounds of the same size that carry nothing, the yardstick of a round.

Started as a program it is a silo that answers every message with so many bytes.
"""

import os
import queue
import sys
import time
from pathlib import Path

from fedpower.federation.certificates import COORDINATOR
from fedpower.federation.links import ANSWER, ASK, Links
from fedpower.federation.local import LocalFederation
from fedpower.federation.processes import end_with_starter, start_process, stop

CONNECT_S = 120.0
ROUND_S = 60.0


def echo_seconds(made: LocalFederation, *, rounds: int, down: int, up: int) -> list[float]:
    """Return how long each of so many rounds takes; no other process of the federation may run."""
    arrived: queue.Queue[tuple[str, int]] = queue.Queue()
    links = Links(
        COORDINATOR,
        accepts=dict.fromkeys(made.silos, ANSWER),
        most_bytes=up,
        on_message=lambda silo, _, number, __: arrived.put((silo, number)),
    )
    study = made.study
    links.listen(study.host, study.port, made.kits / COORDINATOR / "startup")
    words = [study.host, str(study.port), str(down), str(up)]
    command = [sys.executable, "-m", "benchmarks.federation_echo"]
    children = [
        start_process([*command, name, str(made.kits / name), *words], os.environ) for name in made.silos
    ]
    try:
        _wait_until_connected(links, len(children))
        seconds = []
        for number in range(rounds):
            started = time.monotonic()
            content = os.urandom(down)
            for name in made.silos:
                links.send(name, ASK, number, content)
            left = {(name, number) for name in made.silos}
            while left:
                left.remove(arrived.get(timeout=ROUND_S))
            seconds.append(time.monotonic() - started)
        return seconds
    finally:
        for child in children:
            stop(child)
        links.stop()


def _wait_until_connected(links: Links, count: int) -> None:
    ends = time.monotonic() + CONNECT_S
    while len(links.connected()) < count:
        if time.monotonic() >= ends:
            raise SystemExit(f"{count} echoes must connect within {CONNECT_S:.0f} s")
        time.sleep(0.05)


def main() -> None:
    """Answer every message with as many bytes as the command says."""
    end_with_starter()
    name, kit, host, port, down, up = sys.argv[1:]
    links = Links(
        name,
        accepts={COORDINATOR: ASK},
        most_bytes=int(down),
        on_message=lambda peer, _, number, __: links.send(peer, ANSWER, number, os.urandom(int(up))),
    )
    links.connect(host, int(port), Path(kit) / "startup")
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
