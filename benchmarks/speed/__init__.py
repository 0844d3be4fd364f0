"""Speed and scale, in one command: ``python -m benchmarks.speed`` (``make bench``)."""
