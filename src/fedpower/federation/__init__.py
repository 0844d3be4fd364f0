"""A federation of separate processes: what its parties agree on, and what each of them runs."""
