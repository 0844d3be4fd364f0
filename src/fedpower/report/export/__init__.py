"""Results in the formats of other tools: one module a format, imported when it is asked for."""
