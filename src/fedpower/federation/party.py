"""The process of a party, or of a job in it: FLARE's own module, which ends when its starter does.

A job's process also ends when it cannot reach its party any more: its question would never be answered.
"""

import logging
import os
import runpy
import socket
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from urllib.parse import urlsplit

from fedpower.federation.lifeline import end_group, hold_on

_UNREACHED_S = 60.0
"""A job whose party took no connection for so many seconds ends."""

LOOK_S, AGAIN_S = 15.0, 5.0
"""How often a party is looked for that could be reached the last time, and that could not."""

_LEFT_OUT = "nvflare.app_opt.pt.tensor_downloader"
"""FLARE tries to import this at the end of every job, to clear away tensors that nobody here sends; where
PyTorch is installed that would take its seconds and hundreds of megabytes."""

logger = logging.getLogger("fedpower.federation.party")  # it runs as __main__


def _party_address(words: Sequence[str]) -> tuple[str, int] | None:
    """Return where the party of a job listens, of the words of its command; None for a party's own."""
    for option, value in pairwise(words):
        if option in ("-p", "--parent_url"):
            url = urlsplit(value)
            if url.hostname and url.port:
                return url.hostname, url.port
    return None


def end_when_unreached(address: tuple[str, int], *, within: float = _UNREACHED_S) -> None:
    """End this process once its party has taken no connection for ``within`` seconds."""
    threading.Thread(target=_look, args=(address, within), name="reach", daemon=True).start()


def _look(address: tuple[str, int], within: float) -> None:
    reached = time.monotonic()
    while True:
        try:
            socket.create_connection(address, timeout=AGAIN_S).close()
            reached = time.monotonic()
            time.sleep(LOOK_S)
        except OSError:
            if time.monotonic() - reached > within:
                logger.error("this job's party could not be reached for %.0f s; it ends", within)
                end_group()
            time.sleep(AGAIN_S)


def main() -> None:
    """Run the module named first on the command line as if it had been started itself."""
    hold_on()
    os.umask(0o077)  # FLARE's logs, stores and job folders are nobody else's to read
    module, sys.argv = sys.argv[1], sys.argv[1:]
    sys.modules.setdefault(_LEFT_OUT, None)  # type: ignore[arg-type]
    address = _party_address(sys.argv)
    if address is not None:
        end_when_unreached(address)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
