"""Names that the processes of a federation know each other's things by."""

STUDY, SILO, RUNS = "FEDPOWER_STUDY", "FEDPOWER_SILO", "FEDPOWER_RUNS"
"""What a party's own process tells the jobs that FLARE starts in it: no job can write it."""

ROWS = "FEDPOWER_ROWS"
"""The same: the fingerprint of the rows that were checked before the silo connected."""

PROGRESS, REJOIN = "fedpower.progress", "fedpower.rejoin"
"""What a runner may ask a running job: how far it is, and to end after its round."""

STATE, RESULT = "state.json", "result"
"""What a job leaves behind: how it ended, and the result folder."""
