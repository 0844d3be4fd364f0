"""Which lines of a FLARE process an operator is shown: fedpower's own, and whatever is in earnest."""

import logging


class ForOperators(logging.Filter):
    """Lets through what fedpower logs, and warnings and errors of all else."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is shown."""
        ours = record.name.startswith("fedpower") or "Study" in record.name
        # A runner that asks how far a job is, before it runs or after, is no news.
        asked_in_vain = "STP=app_command" in record.getMessage()
        return ours or (record.levelno >= logging.WARNING and not asked_in_vain)
