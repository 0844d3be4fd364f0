"""What a silo's operator reads before a study is approved: who asks, what leaves, and at what price."""

from collections.abc import Collection
from typing import Any

from fedpower.estimator.fit_warnings import weights_summary
from fedpower.exceptions import BudgetError
from fedpower.federation.study_file import StudyFile
from fedpower.privacy.accounting import epsilon_of
from fedpower.privacy.budget import COVARIANCE, MEAN, PRODUCT, SCORES
from fedpower.privacy.ledger import unit_of
from fedpower.protocol.release import protects
from fedpower.protocol.silo import PrivateReleases, Silo
from fedpower.protocol.study import Study, worst_epsilon
from fedpower.report.text import and_more, count
from fedpower.rows.inspecting import doubtful
from fedpower.rows.networks import weighed_edges
from fedpower.rules.rules import Rule
from fedpower.sums.survey import ONLY_YOU, cells_warnings, units_warning

_UNITS = {
    "": "what one row holds, not what a person with several rows holds",
    "edge": "one edge of the network, present or absent",
    "row": "one row of the network",
}
MOST_NAMED = 1000  # columns on a screen


def size_of(silo: Silo) -> str:
    """Return how many rows, or persons and their rows, or nodes a silo has, for its operator."""
    terms, moment = silo.study, silo.releases.rows
    if terms.network:
        return f"read a network on {terms.n_features} nodes"
    read = f"read {moment.n_read} rows of {terms.n_features} columns"
    if terms.unit:
        read += (
            f", of {moment.n_rows} persons"
            if terms.rows_per_unit == 1
            else f", of which {moment.n_rows} count"
        )
    return read


def advice_of(silo: Silo) -> list[str]:
    """Return what an operator should consider before taking part; it goes no further."""
    moment, study = silo.releases.rows, silo.study
    if study.network == "edge":
        odd = weights_summary(weighed_edges({silo.name: moment.source}).values())
        return [] if odd is None else [f"{odd} {ONLY_YOU}"]
    advice = []
    if moment.treatment.row_norm is not None and moment.n_clipped:
        clipped, rows = moment.n_clipped, moment.n_read
        more = ": propose public centres and scales, or a larger bound, for the next study"
        advice.append(
            f"{clipped} of {rows} rows ({clipped / rows:.1%}) exceed the study's row_norm and are clipped "
            f"{ONLY_YOU}{more if 2 * clipped > rows else ''}"
        )
    units = units_warning(moment, study.groups, study.columns)
    unlike = [
        f"column {column!r} {why} {ONLY_YOU}; if it is not a measurement, propose to drop it"
        for column, why in doubtful(moment.source)
    ]
    mixed = []
    if isinstance(silo.releases, PrivateReleases):
        purpose = protects(study)
        about = silo.releases.ledger.unit(purpose)
        mixed = [] if about == unit_of([purpose]) else [f"with this study, the ledger is about {about}"]
    return [*mixed, *advice, *units, *cells_warnings(moment.source), *unlike]


def review(study: StudyFile, signed_by: Collection[str]) -> dict[str, Any]:
    """Return what a study asks of any silo: who asks, and of which columns."""
    terms = study.terms()[0]
    unit = _UNITS[terms.network]
    if terms.unit:
        most = f"{terms.rows_per_unit} rows at most" if terms.rows_per_unit > 1 else "all rows"
        unit = f"what one person holds in {most}, by column {terms.unit!r}"
    sent, seen = "with noise unless marked exact", "all that leaves a silo"
    if terms.is_secure:
        most = count(terms.attempts, "attempt")
        sent = f"in {most} together, with noise and under masks unless marked exact"
        seen = "the sum of the silos, and what is marked exact"
    elif not terms.is_private:
        unit, sent = "nobody: this study is NOT private", "exact, without noise"
    return {
        "name": study.name,
        "study": study.digest,
        "silos": list(study.silos),
        "goes_on_with": study.min_silos,
        "coordinator": f"{study.host}:{study.port}",
        "coordinator_sees": seen,
        "signed_by": list(signed_by),
        "colluders": terms.colluders if terms.is_secure else None,
        "keys": study.identities if terms.is_secure else {},
        "protects": unit,
        "sent": sent,
        "nodes" if terms.network else "columns": list(study.table_columns),
        "rules": rules_in_words(study),
    }


def rules_in_words(study: StudyFile) -> list[str]:
    """Return what becomes of the cells of each column of a table."""
    found: dict[str, list[str]] = {}
    for rule in () if study.rules is None else study.rules.rules:
        words = _PERSON if rule.column == study.options.person.column else _in_words(rule)
        found.setdefault(words, []).append(" and ".join(rule.columns))
    return [f"{', '.join(and_more(names, MOST_NAMED))}: {words}" for words, names in found.items()]


_PERSON = "tells persons apart, and is in no answer"


def _in_words(rule: Rule) -> str:
    ends = "" if rule.range is None else f" from {rule.range[0]:g} to {rule.range[1]:g}"
    listed = ", ".join(and_more(rule.levels or rule.items))
    words = {
        "number": f"a number{ends}",
        "levels": f"one column for each of {listed}",
        "ordered": f"0 to {len(rule.levels) - 1} for {listed}",
        "yes/no": "0 or 1",
        "date": f"{rule.unit} since {rule.origin}{ends}",
        "rating": f"a rating{ends}",
        "comparison": f"which of {listed} won",
        "person": _PERSON,
        "item": "tells what is rated",
        "drop": "left out",
    }
    signs, missing = f" ({', '.join(and_more(rule.missing_words))})" if rule.missing_words else "", ""
    if signs or rule.missing is not None:
        become = f"{rule.missing:g}" if isinstance(rule.missing, float) else rule.missing
        become = "ignored" if become in (None, "offset") else become
        missing = f", {become} if missing{signs}"
    missing += ", and whether it is missing" if rule.indicator else ""
    return words[rule.kind] + missing


def review_rows(silo: Silo, version: str) -> dict[str, Any]:
    """Return what a study means for this silo; what it says about rows stays on the operator's screen."""
    terms, moment = silo.study, silo.releases.rows
    if terms.network == "edge":
        thing = "networks"
        (weighed,) = weighed_edges({silo.name: moment.source}).values()
        odd: dict[str, Any] = {"edges_capped_at_the_maximum": weighed.n_capped}
    else:
        thing = "rows"
        odd = {"rows_clipped_by_the_bound": moment.n_clipped}
    sizes = {"persons": moment.n_rows, "rows": moment.n_read} if terms.unit else {thing: moment.n_rows}
    advice = advice_of(silo)
    return {"data_version": version, **sizes, **odd, **({"advice": advice} if advice else {})}


def leaving(silo: Silo) -> list[dict[str, Any]]:
    """Return what leaves the silo, in order: what it is, how many numbers, their share of the price."""
    terms = silo.study
    persons = terms.unit and terms.rows_per_unit == 1
    counted = "networks, which is 1" if terms.network == "edge" else "persons" if persons else "rows"
    most = f", {terms.rows_per_unit} at most of a person" if terms.unit and not persons else ""
    first = {"what": f"number of {counted}{most}, exact", "numbers": 1, "times": 1, "share": 0.0}
    if not terms.is_private:
        exact = "sums over your rows, as the coordinator asks"
        return [first, {"what": exact, "numbers": None, "times": None, "share": None}]
    sent = [
        {
            "what": _query_in_words(query.label, terms),
            "numbers": query.size,
            "times": query.times * terms.attempts,
            "share": query.share * query.times,
        }
        for query in terms.budget.queries
    ]
    if terms.is_secure:
        keys = {"what": "key, signature and count of attempts, exact", "numbers": 3}
        sent.insert(0, keys | {"times": terms.attempts, "share": 0.0})
    return [first, *sent]


def _query_in_words(label: str, study: Study) -> str:
    kind = label.split(maxsplit=1)[0]
    what = "adjacency" if study.network == "edge" else "covariance"
    trace = " with the trace" if study.budget.with_trace else ""
    words = {
        COVARIANCE: f"{what}, mean row and trace" if study.center else f"{what} and its trace",
        MEAN: "mean row",
        PRODUCT: f"product of {study.n_features} × {study.iteration_rank}{trace}",
        SCORES: "counts of rows by their scores on two components",
        "octaves": "counts of cells by size: rough column ranges",
        "bins": "counts of cells by size: column ranges",
        "zoom": "counts of cells by size: narrow column ranges",
        "means": "sums of cells: means and spreads",
        "norms": "counts of rows by distance from the center",
    }
    return words.get(kind, label)


def price(silo: Silo) -> dict[str, Any]:
    """Return what a study costs a silo: epsilon of the study, and of the ledger before and after it."""
    releases, terms = silo.releases, silo.study
    if not isinstance(releases, PrivateReleases):
        return {"epsilon_of_this_study": None, "delta": None}
    before, after = releases.ledger.spent(), releases.spent_after
    affordable = True
    try:  # the whole study, or one more attempt at a secure sum
        releases.check_affordable()
    except BudgetError:
        affordable = False
    attempts: dict[str, Any] = {}
    if terms.is_secure:
        attempts = {
            "epsilon_of_one_attempt": epsilon_of(releases.budget.study_mu, releases.budget.left_delta),
            "attempts_at_most": terms.attempts,
            "attempts_charged_so_far": releases.attempts_charged,
        }
    return {
        **attempts,
        "epsilon_of_this_study": worst_epsilon(terms),
        "delta": terms.delta,
        "spent_before": before.epsilon,
        "spent_after": after.epsilon,
        "cap": before.cap,
        "delta_of_the_cap": before.delta,
        "affordable": affordable,
    }
