"""When a round is over: the one rule for every engine that has a clock."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a round may take. Durations on one machine's clock: clocks need not agree.

    Attributes
    ----------
    deadline
        Seconds after which a round is closed with those who answered; None waits for all.
    grace
        Seconds that stragglers get once enough silos answered; None gives them the whole deadline.
    enough
        How many answers start the grace period.
    """

    deadline: float | None = None
    grace: float | None = None
    enough: int = 1

    def left(self, elapsed: float, since_enough: float | None) -> float | None:
        """Return how many seconds the round has left, 0 when it is over; None without an end.

        Parameters
        ----------
        elapsed
            Seconds since the round was opened.
        since_enough
            Seconds since ``enough`` silos had answered; None where they have not.
        """
        ends = []
        if self.deadline is not None:
            ends.append(self.deadline - elapsed)
        if self.grace is not None and since_enough is not None:
            ends.append(self.grace - since_enough)
        return max(0.0, min(ends)) if ends else None
