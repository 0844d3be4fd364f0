"""Scripts that run in a peer's own environment: standard library, NumPy and the peer, nothing of ours."""
