"""The runner, documents that match what was recorded, and trusted curators as exact as they should be."""

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import runner
from benchmarks.baselines import analyze_gauss, curator_noise, exponential_eigenvectors, leading
from benchmarks.results_page import render
from benchmarks.runner import Case, Table, in_own_process, markdown
from fedpower.linalg import sin_theta
from fedpower.privacy import delta_of

PAPER = Path(__file__).parents[2] / "docs" / "paper"


def sized(
    *, rows: int = 10, ends: tuple[float, ...] = (1.0,), path: Path | None = None, small: bool = False
) -> Table:
    return Table(columns=["rows"], rows=[[rows]], measured=[[rows, ends, small]])


CASE = Case(name="sized", about="", run=sized, given={"rows": 20}, quick={"ends": (0.5,)})


def test_parameters_are_defaults_then_quick_sizes_then_what_is_chosen():
    assert CASE.parameters() == {"rows": 20, "ends": (1.0,), "path": None, "small": False}
    chosen = {"rows": "7", "ends": "1,2", "path": "a.csv", "small": "yes", "of_another_case": "1"}
    expected = {"rows": 7, "ends": (1.0, 2.0), "path": Path("a.csv"), "small": True}
    assert CASE.parameters(quick=True, chosen=chosen) == expected
    assert CASE.parameters(quick=True)["ends"] == (0.5,)


@pytest.mark.programs
def test_a_task_runs_in_a_process_of_its_own_and_says_why_it_failed():
    assert in_own_process("benchmarks.runner:machine")["cores"] > 0
    assert in_own_process("benchmarks.runner:no_such_task")["ended"].startswith("failed: AttributeError")
    assert "did not finish" in in_own_process("benchmarks.runner:machine", limit_s=0.01)["ended"]


def test_marked_places_are_written_and_stale_ones_found(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results: sized -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    assert render(check=True, pages=[page]) == ["page.md"]
    assert "old" in page.read_text(encoding="utf-8")
    render(pages=[page])
    assert "Not measured yet" in page.read_text(encoding="utf-8")
    runner.run_case(CASE, tmp_path)
    render(pages=[page])
    text = page.read_text(encoding="utf-8")
    assert markdown(["rows"], [[20]]) in text
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert render(check=True, pages=[page]) == []


def test_documents_match_the_recorded_results_and_their_pictures_are_there():
    assert render(check=True) == []
    for line in (PAPER / "results.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("!["):
            assert (PAPER / line.rpartition("(")[2].rstrip(")")).exists()


def test_the_curators_noise_is_what_the_promise_needs_and_none_without_privacy(rows):
    std = curator_noise(n_rows=1000, epsilon=0.7, delta=1e-5)
    mu = math.sqrt(2.0) / 1000 / std
    assert delta_of(mu, 0.7) == pytest.approx(1e-5, rel=1e-6)
    assert delta_of(mu * 1.001, 0.7) > 1e-5
    moment, rng = rows.T @ rows / len(rows), np.random.default_rng(0)
    found = analyze_gauss(moment, 3, n_rows=len(rows), epsilon=math.inf, delta=1e-6, rng=rng)
    assert np.array_equal(found, leading(moment, 3)[1])


def test_the_exponential_mechanism_gives_an_orthonormal_basis_that_nears_the_exact_one(rows):
    moment, errors = rows.T @ rows / len(rows), []
    for epsilon in (1e6, 1e12):
        rng = np.random.default_rng(0)
        found = exponential_eigenvectors(moment, 3, n_rows=len(rows), epsilon=epsilon, rng=rng)
        assert found.T @ found == pytest.approx(np.eye(3), abs=1e-10)
        errors.append(sin_theta(found, leading(moment, 3)[1]))
    assert errors[1] < 1e-3
    assert errors[1] < errors[0]
