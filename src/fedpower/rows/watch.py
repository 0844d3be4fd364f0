"""Reports of rows being read, and a stop between two blocks, in whichever thread."""

from collections.abc import Callable


class Stopped(BaseException):
    """Reading was stopped from outside; no error, so nothing that handles errors may take it for one."""


class Watch:
    """Counts the rows of each block, and ends the reading once it was stopped."""

    def __init__(self, on_rows: Callable[[int], None] | None = None) -> None:
        self._on_rows = on_rows
        self._stopped = False

    def stop(self) -> None:
        """Let every pass over the rows end at its next block."""
        self._stopped = True

    def saw(self, n_rows: int) -> None:
        """Take note of a block that was read."""
        if self._stopped:
            raise Stopped
        if self._on_rows is not None:
            self._on_rows(n_rows)


UNWATCHED = Watch()
"""For readings that nobody watches or stops."""
