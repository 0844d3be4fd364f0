"""``report.html``: a result as one page that needs nothing but itself, made from its folder alone."""

from fedpower.report.page.components import components_section, loadings_section
from fedpower.report.page.document import document
from fedpower.report.page.privacy import privacy_section
from fedpower.report.page.run import provenance_section, rounds_section, silos_section
from fedpower.report.page.scores import scores_section
from fedpower.report.page.summary import heading, summary
from fedpower.report.result import Result

__all__ = ["page"]

CONTENTS = {
    "privacy": "Privacy",
    "components": "Components",
    "loadings": "Loadings",
    "scores": "Scores",
    "rounds": "Rounds",
    "silos": "Silos",
    "provenance": "Where this comes from",
}


def page(result: Result) -> str:
    """Return the report of a result: the same bytes for the same result, wherever and whenever made."""
    scores = scores_section(result)
    sections = (
        summary(result),
        privacy_section(result.run),
        components_section(result),
        loadings_section(result),
        *(() if scores is None else (scores,)),
        rounds_section(result.run),
        silos_section(result.run),
        provenance_section(result.run),
    )
    return document(
        result.headline,
        heading(result),
        {key: each for key, each in CONTENTS.items() if key != "scores" or scores is not None},
        sections,
        version=result.run["versions"]["fedpower"],
    )
