"""What goes along with an exported result, so that a file found later says where it is from."""

from typing import Any

from fedpower.report.findings import Findings
from fedpower.report.record import plain


def provenance(result: Findings) -> dict[str, Any]:
    """Return the facts of a fit that its components do not tell, ready for JSON.

    ``private`` is false where epsilon was infinite or something leaked: a file that travels without its
    folder must not lose that.
    """
    return {
        "fedpower": result.run["versions"]["fedpower"],
        "study": result.run["study"]["hash"],
        "private": result.run["privacy"]["private"],
        "n_samples": result.n_samples,
        "normalize": result.normalize,
        "explained_variance": plain(result.explained_variance),
        "explained_variance_ratio": plain(result.explained_variance_ratio),
    }
