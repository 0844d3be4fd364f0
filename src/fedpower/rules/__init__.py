"""Rules that turn the cells of a table into numbers."""
