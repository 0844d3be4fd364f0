"""What all pictures share: readable in grey and by the colour-blind, the same bytes every time."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from fedpower.errors import InputError, installing

INK = "#000000"
GREY = "#dddddd"

ORANGE, BLUE, GREEN, PURPLE, SKY = "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9"
"""Okabe and Ito's palette, which the colour-blind can tell apart."""

NOISE_STYLES: dict[str, dict[str, Any]] = {
    "paper": {"color": "0.6", "linestyle": ":", "marker": "s"},
    "step": {"color": "0.35", "linestyle": "--", "marker": "^"},
    "moment": {"color": "0.0", "linestyle": "-", "marker": "o"},
}
"""By noise mode: told apart in grey by shade, by line and by marker."""

SETTINGS = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GREY,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "fedpower",  # else names inside an SVG are random
    "svg.fonttype": "path",
}


@contextmanager
def drawing() -> Iterator[Any]:
    """Give matplotlib's Figure class, with the look set while the block runs."""
    require_matplotlib()
    import matplotlib as mpl  # noqa: PLC0415  (optional and slow)
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(SETTINGS):
        yield Figure


def require_matplotlib() -> None:
    """Refuse to draw where nothing can."""
    try:
        import matplotlib as mpl  # noqa: PLC0415  (optional and slow)
    except ImportError:
        raise InputError(
            f"a picture must be drawn by matplotlib, got none installed; run {installing('plot')}"
        ) from None
    del mpl


def saved(figure: Any, kind: str) -> bytes:
    """Return a figure as a file of this kind, without dates: the same figure is the same bytes."""
    made = BytesIO()
    dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    figure.savefig(made, format=kind, metadata=dated)
    return made.getvalue()
