"""NVIDIA FLARE carries the messages: separate processes, mutual TLS. Nothing of the algorithm is here."""
