"""Which lines of a FLARE process an operator is shown: fedpower's own, and whatever is in earnest."""

import logging


class ForOperators(logging.Filter):
    """Lets through what fedpower logs, and warnings and errors of all else."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is shown."""
        ours = record.name.startswith("fedpower") or "Study" in record.name
        return ours or record.levelno >= logging.WARNING
