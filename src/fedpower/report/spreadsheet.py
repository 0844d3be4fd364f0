"""Text in CSV files that a spreadsheet must not take for a formula."""

from typing import Any

RUN = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that spreadsheets run."""


def as_text(cell: Any) -> Any:
    """Return a cell that no spreadsheet runs: text that begins as formulas do gets an apostrophe first.

    So does text that has apostrophes before such a beginning already: one taken off gives it back.
    Numbers stay numbers, also those that are written as text.
    """
    if not isinstance(cell, str) or not cell.lstrip("'").startswith(RUN) or _is_number(cell):
        return cell
    return f"'{cell}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
