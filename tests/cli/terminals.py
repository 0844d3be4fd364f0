"""A command in a process of its own whose stderr is a terminal, and what it shows there."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

PROGRAM = [sys.executable, "-c", "from fedpower.cli import main; main()"]
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Runs ``fedpower WORDS`` with stderr on a pseudo-terminal.

    ``said`` is what was shown so far, without the codes that move the cursor.
    """

    def __init__(self, *words: object) -> None:
        self._reader, writer = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=writer,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        os.close(writer)
        self._raw = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        os.close(self._reader)

    @property
    def said(self) -> str:
        return CODES.sub("", self._raw.decode(errors="replace"))

    def wait_for(self, pattern: str, seconds: float = 120.0) -> str:
        """Return the first text on the terminal that matches; fail where none comes."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = re.search(pattern, self.said)
            if found:
                return found[0]
            if not self._read(0.2) and self.process.poll() is not None and not self._read(0.0):
                break
        raise AssertionError(f"no {pattern!r} in {self.said!r}")

    def interrupt(self) -> int:
        """Return the exit status after Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self, seconds: float = 120.0) -> int:
        """Return the exit status once the process has ended by itself."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < until, self.said
            self._read(0.1)
        while self._read(0.0):
            pass
        return int(self.process.returncode)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._reader], [], [], seconds)
        if not ready:
            return False
        try:
            more = os.read(self._reader, 65536)
        except OSError:  # Linux's word for a terminal that nobody writes to any more
            return False
        self._raw += more
        return bool(more)
