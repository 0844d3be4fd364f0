"""Which lines of a FLARE process an operator is shown: fedpower's own, and whatever is in earnest."""

import logging

_ASKED_IN_VAIN = ("STP=app_command", "no app command func for topic fedpower.")
"""In lines about a runner that asks how far a job is, before it runs or after: that is no news."""


class ForOperators(logging.Filter):
    """Lets through what fedpower logs, and warnings and errors of all else."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is shown."""
        ours = record.name.startswith("fedpower") or "Study" in record.name
        message = record.getMessage()
        asked_in_vain = any(words in message for words in _ASKED_IN_VAIN)
        return ours or (record.levelno >= logging.WARNING and not asked_in_vain)
