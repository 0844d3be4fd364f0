"""The protocol, sans-IO: messages, silo, coordinator and solvers; one implementation for every engine."""
