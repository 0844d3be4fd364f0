"""A command in a process of its own whose stderr is a terminal, and what it shows there."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Self

PROGRAM = [sys.executable, "-c", "from fedpower.cli import main; main()"]
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SECONDS = 120.0


class Terminal:
    """Runs ``fedpower WORDS`` with stderr on a pseudo-terminal."""

    def __init__(self, *words: object) -> None:
        self._reader, writer = pty.openpty()
        self._raw = b""
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=writer,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"},
            start_new_session=True,
        )
        os.close(writer)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()
        self._thread.join()
        os.close(self._reader)

    @property
    def said(self) -> str:
        """What was shown so far, without the codes that move the cursor."""
        return CODES.sub("", self._raw.decode(errors="replace"))

    def wait_for(self, pattern: str) -> None:
        """Wait for a text on the terminal; fail where none comes."""
        until = time.monotonic() + SECONDS
        while not re.search(pattern, self.said):
            assert time.monotonic() < until, f"no {pattern!r} in {self.said!r}"
            assert self._thread.is_alive() or re.search(pattern, self.said), self.said
            time.sleep(0.02)

    def interrupt(self) -> int:
        """Return the exit status after Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """Return the exit status once the process has ended by itself."""
        self.process.wait(SECONDS)
        self._thread.join(SECONDS)
        return int(self.process.returncode)

    def _read(self) -> None:
        try:
            while more := os.read(self._reader, 65536):
                self._raw += more
        except OSError:  # Linux's word for a terminal that nobody writes to any more
            pass
