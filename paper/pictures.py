"""Pictures of the paper's figures and of benchmarks: the same figure is the same bytes every time."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from fedpower.exceptions import needed

INK, GREY = "#000000", "#dddddd"

_SETTINGS = {
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
    mpl = needed("matplotlib", "dev", "a picture must be drawn by")
    from matplotlib.figure import Figure  # noqa: PLC0415  (optional and slow)

    with mpl.rc_context(_SETTINGS):
        yield Figure


def saved(figure: Any, kind: str) -> bytes:
    """Return a figure as a file of this kind, without dates: the same figure is the same bytes."""
    made = BytesIO()
    dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    figure.savefig(made, format=kind, metadata=dated)
    return made.getvalue()
