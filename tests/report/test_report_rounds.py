"""Rounds, silos and budgets, as the report shows them."""

from typing import Any

from parsed_page import parsed, words

from fedpower.report.page import result_page as page
from sample_results import with_run


def test_one_round_is_told_in_words_and_many_are_drawn(result: Any):
    single = parsed(page(result("private"))).by_id("rounds")
    assert "One round did it" in words(single)
    assert not single.every("svg")
    assert "Change" not in words(single)
    run = result("krylov").run
    many = parsed(page(result("krylov"))).by_id("rounds")
    convergence, traffic = many.every("svg", role="img")
    moved = [each["change"] for each in run["rounds"] if each["change"] is not None]
    assert len(moved) > 3
    assert len(convergence.every("path", class_="change")) == len(moved)
    assert len(traffic.every("rect", class_="up")) == run["n_rounds"]
    rows = many.every("table")[0].every("tr")[1:]
    assert [int(row.children[4].attributes["data-value"]) for row in rows] == [
        each["bytes_up"] for each in run["rounds"]
    ]


def test_misalignment_is_drawn_where_it_was_recorded(result: Any):
    run = result("sampled").run
    spread = [each["misalignment"] for each in run["rounds"] if each["misalignment"] is not None]
    assert len(spread) > 1
    section = parsed(page(result("sampled"))).by_id("rounds")
    assert len(section.every("path", class_="misalignment")) == len(spread)
    assert "Misalignment (ρ)" in words(section)


def test_the_grid_has_a_cell_for_every_silo_and_round(result: Any):
    run = result("sampled").run
    section = parsed(page(result("sampled"))).by_id("silos")
    answered = sum(each["n_participants"] for each in run["rounds"])
    cells = len(run["silos"]) * run["n_rounds"]
    assert 0 < answered < cells
    assert len(section.every("rect", class_="answered")) == answered
    assert len(section.every("rect", class_="missing")) == cells - answered
    assert len(section.every("path", class_="missing")) == cells - answered
    assert "did not answer in time" in words(section)


def test_a_silo_that_never_answered_is_in_the_grid_of_a_federation(result: Any):
    section = parsed(page(result("federated"))).by_id("silos")
    assert "never-there" in words(section)
    assert "Questions missed" in words(section)
    assert "Rows come from" not in words(section)


def test_a_silo_whose_answers_were_set_aside_is_named_with_the_reason(result: Any):
    whole = result("federated")
    assert "Set aside" not in words(parsed(page(whole)).by_id("silos"))
    why = "round 1: a mean must have the shape (6,), got (5,)"
    reported = {**whole.run["federation"], "set_aside": {"never-there": why}}
    section = parsed(page(with_run(whole, {**whole.run, "federation": reported}))).by_id("silos")
    assert why in words(section)


def test_budgets_of_silos_are_shown_only_where_the_record_has_them(result: Any):
    whole = result("private")
    plain = words(parsed(page(whole)).by_id("privacy"))
    assert "Spent of what was asked for" in plain
    assert "known to that silo only" in plain
    budget = {"spent": 1.0, "left": 1.67, "cap": 2.0, "delta": 1e-6, "used": 0.31}
    run = {**whole.run, "silos": [{**each, "budget": budget} for each in whole.run["silos"]]}
    shown = parsed(page(with_run(whole, run))).by_id("privacy")
    assert "Budgets after this fit" in words(shown)
    assert [words(cell) for cell in shown.every("table")[1].every("tr")[1].children] == [
        "north", "1.000", "1.670", "2.000", "10⁻⁶", "31.0%",
    ]  # fmt: skip
