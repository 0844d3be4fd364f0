"""Games: promises are kept, too little noise is caught, and without noise a coordinator has a row."""

import json
import math

import pytest
from click.testing import CliRunner

from fedpower.cli.privacy import audit
from fedpower.exceptions import InputError
from fedpower.experiments import audit as audits
from fedpower.experiments.attack import AttackSetting, attack
from fedpower.experiments.audit import Game, audit_mode, control_factor
from fedpower.privacy.accounting import epsilon_of, mu_of
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise
from fedpower.protocol.study import Study

pytestmark = pytest.mark.audits


SURE = 1 - 1e-6
TERMS = {"epsilon": 4.0, "delta": 1e-5, "n_steps": 2, "confidence": SURE}
CASES = [("covariance", False), ("covariance", True), ("step", False), ("step", True), ("paper", False)]
SECURE = [("secure", False), ("secure", True)]


def game_of(mode, center, *, n_rows=50, iteration_rank=2, n_steps=3):
    noise = "covariance" if mode == "secure" else mode
    study = Study(
        columns=None,
        n_features=4,
        iteration_rank=4 if noise == "covariance" else iteration_rank,
        center=center,
        noise=noise,
        epsilon=4.0,
        delta=1e-5,
        n_steps=None if noise == "covariance" else n_steps,
    )
    made = Game(study, n_rows, SystemNoise(), is_secure=mode == "secure")
    return made, made.study.budget.study_mu


@pytest.mark.parametrize(
    ("mode", "center", "more"),
    [
        *((*case, {"n_rows": n_rows}) for case in CASES + SECURE for n_rows in (2, 50, 1000)
          if case != ("step", True)),
        ("step", True, {"n_steps": 10}),
        *(("step", False, {"iteration_rank": rank}) for rank in (1, 2, 4)),
    ],
)  # fmt: skip
def test_the_worlds_are_as_far_apart_as_the_price_list_says(mode, center, more):
    """The attacker's μ is all of the study's: no neighbours are worse, and no bound is loose."""
    game, charged = game_of(mode, center, **more)
    # Products want x ⟂ y, the mean y = −x: together they move a little less than is paid for.
    loose = 0.05 if (mode, center) == ("step", True) else 1e-5
    assert (1 - loose) * charged < game.mu <= charged


@pytest.mark.parametrize(("mode", "center"), CASES + SECURE)
def test_the_product_s_own_noise_is_not_accused(mode, center):
    more = {"n_runs": 60, "epsilon": 10.0} if mode == "secure" else {"n_runs": 150}
    report = audit_mode(mode, center=center, **TERMS | more)
    assert report.epsilon_lower == epsilon_of(report.mu_lower, 1e-5)
    assert report.verdict == "no violation found"
    assert not report.violation
    assert report.epsilon_lower <= report.exact_epsilon <= report.claimed_epsilon


@pytest.mark.parametrize(
    ("mode", "center", "more"),
    [
        # 500 runs miss it once in some ten times.
        *((*case, {"n_runs": 1500, "noise_factor": 0.5}) for case in CASES if case[0] != "paper"),
        ("secure", False, {"n_runs": 400, "noise_factor": 0.5**0.5, "epsilon": 10.0, "confidence": 0.95}),
    ],
)
def test_too_little_noise_is_caught(mode, center, more):
    source = SeededNoiseForExperiments(0)
    report = audit_mode(mode, center=center, source=source, **TERMS | {"confidence": 0.999} | more)
    assert report.verdict == "VIOLATION"
    assert report.exceeds_accounting
    assert report.epsilon_lower > report.claimed_epsilon


def test_half_of_the_paper_s_noise_keeps_its_promise_and_half_of_what_is_needed_does_not():
    """The printed noise is several times too large, so halving it breaks accounting only."""
    sound = audit_mode("paper", n_runs=100, noise_factor=0.5, **TERMS)
    assert not sound.violation
    assert sound.exact_epsilon < sound.reachable_epsilon < sound.claimed_epsilon
    factor = control_factor("paper", epsilon=4.0, delta=1e-5, n_steps=2)
    assert factor < 0.2
    given = TERMS | {"confidence": 0.999, "n_runs": 500, "noise_factor": factor}
    assert audit_mode("paper", source=SeededNoiseForExperiments(1), **given).violation
    given = TERMS | {"epsilon": 16.0, "n_steps": 1, "n_runs": 1000, "noise_factor": 0.5, "confidence": 0.99}
    report = audit_mode("paper", source=SeededNoiseForExperiments(2), **given)
    assert report.exceeds_accounting
    assert not report.violation


@pytest.mark.parametrize("mode", ["step", "covariance", "paper"])
def test_a_control_s_silo_really_adds_that_much_less(mode):
    full, half = (audit_mode(mode, n_runs=20, noise_factor=factor, **TERMS) for factor in (1.0, 0.5))
    assert half.claimed_epsilon == full.claimed_epsilon
    assert half.exact_epsilon == full.exact_epsilon
    twice = epsilon_of(2 * mu_of(full.reachable_epsilon, 1e-5), 1e-5)
    assert half.reachable_epsilon == pytest.approx(twice, rel=1e-4)


PERSONS = [
    ("covariance", False),
    ("covariance", True),
    ("step", False),
    ("secure", True),
    ("prepared", False),
]


@pytest.mark.parametrize(("mode", "center"), PERSONS)
def test_no_person_is_told_from_another_better_than_promised(mode, center):
    """No neighbours are worse, and weights are not smaller than they may be: within 2√m/P, of 4 rows."""
    n_runs, source = (60 if mode == "secure" else 400), SeededNoiseForExperiments(1)
    found = audit_mode(mode, center=center, n_runs=n_runs, source=source, unit="person", **TERMS)
    assert not found.violation
    assert found.unit == "person"
    if mode != "secure":
        # Preparation weighs in parts of T, of which three rows have three thirds less one.
        loose = 1e-3 if mode == "prepared" else 2e-4
        assert found.reachable_epsilon <= found.exact_epsilon * (1 + 1e-9)
        assert found.reachable_epsilon == pytest.approx(found.exact_epsilon, rel=loose)


@pytest.mark.parametrize(
    ("mode", "unit", "terms"),
    [
        ("prepared", "row", {"n_rows": 20, "n_features": 6, "n_runs": 300, "noise_factor": 0.35}),
        ("scores", "row", {"n_rows": 20, "n_runs": 300, "noise_factor": 0.35}),
        ("scores", "person", {"n_rows": 20, "n_runs": 300, "noise_factor": 0.35}),
        ("clipped", "row", {"n_steps": 5, "n_runs": 400, "noise_factor": 0.5}),
    ],
)
def test_further_modes_keep_their_promise_and_too_little_noise_is_caught(mode, unit, terms):
    """With confidence 0.999 of the first; in the second μ is 2.5 for 0.87, beyond ten standard errors."""
    given = {"epsilon": 4.0, "delta": 1e-5, "confidence": 0.999, "unit": unit, **terms}
    assert not audit_mode(
        mode, source=SeededNoiseForExperiments(2), **given | {"noise_factor": 1.0}
    ).violation
    assert audit_mode(mode, source=SeededNoiseForExperiments(3), **given).violation


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"epsilon": math.inf}, "an audit must have noise"),
        ({"noise_factor": 0.0}, "an audit must have noise"),
        ({"n_features": 3, "iteration_rank": 4}, "n_features must be"),
        ({"n_runs": 5}, "20 finite scores"),
    ],
)
def test_an_audit_that_cannot_be_is_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        audit_mode("step", **{"n_runs": 20} | TERMS | change)


@pytest.fixture
def run(monkeypatch):
    """Commands cannot be given a seed, so that nobody does by accident; their noise is replaced."""
    monkeypatch.setattr(audits, "SystemNoise", lambda: SeededNoiseForExperiments(0))
    return lambda words: CliRunner().invoke(audit, words.split(), standalone_mode=False)


def test_the_command_ends_with_0_and_says_that_the_control_was_caught(run):
    result = run("--mode covariance --runs 300")
    assert result.return_value == 0
    assert "Detected 1 of 1 controls with half of the noise" in result.output
    assert "No violation of ε = 4, δ = 1e-5 in 1,200 runs" in result.output
    assert result.output.count("no violation found") == 2  # plain and centred


@pytest.mark.parametrize(
    ("mode", "more"), [("covariance", "--runs 300"), ("secure", "--epsilon 10 --runs 120 --confidence 0.99")]
)
def test_the_command_ends_with_1_when_a_promise_is_broken(run, mode, more):
    result = run(f"--mode {mode} --halved --json {more}")
    record = json.loads(result.stdout)
    assert result.return_value == 1
    assert record["violation"]
    (control,) = record["audits"]
    assert (control["mode"], control["noise_factor"], control["verdict"]) == (mode, 0.5, "VIOLATION")
    assert f"mode {mode!r} loses at least" in record["verdict"]


def test_too_few_runs_to_catch_anything_are_said_to_be_too_few_also_of_persons(run):
    result = run("--mode covariance --runs 20 --epsilon 0.1 --neighbours person")
    assert result.return_value == 0
    assert "too few to detect half of the noise" in result.stderr
    assert "0 of 1 controls" in result.stdout
    assert "covariance, persons" in result.stdout


SMALL = AttackSetting(n_rows=300, n_features=10, iteration_rank=3, n_steps=6)
SEEDS = range(4)


@pytest.fixture(scope="module")
def results():
    found = attack((0.5, 10.0), setting=SMALL, seeds=SEEDS, source=SeededNoiseForExperiments(0))
    return {(each.mode, each.epsilon): each for each in found}


def test_without_noise_the_moment_and_the_row_are_read_off(results):
    found = results["none", math.inf]
    assert found.error < 1e-9
    assert found.row_cosine > 1 - 1e-9


@pytest.mark.parametrize("mode", ["paper", "step", "covariance"])
def test_at_half_an_epsilon_the_row_is_hidden_in_every_mode(results, mode):
    """Medians of 4 seeds, seeded; a cosine of 0.9 would be the row with an error of 26°."""
    assert results[mode, 0.5].row_cosine < 0.7
    assert results[mode, 0.5].error > 0.1


def test_more_privacy_is_a_worse_guess_and_the_moment_mode_is_the_most_useful(results):
    for mode in ("paper", "step", "covariance"):
        assert results[mode, 0.5].error > results[mode, 10.0].error
    assert results["covariance", 10.0].error < results["step", 10.0].error
    assert results["step", 0.5].error < results["paper", 0.5].error


def test_an_attack_on_nothing_is_refused():
    with pytest.raises(InputError, match="finite epsilons"):
        attack((math.inf,), setting=SMALL)
    with pytest.raises(InputError, match="at least one seed"):
        attack((1.0,), setting=SMALL, seeds=())


def test_the_command_prints_a_table_or_json():
    words = ["--attack", "--epsilon", "1", "--runs", "1", "--json"]
    result = CliRunner().invoke(audit, words, standalone_mode=False)
    record = json.loads(result.stdout)
    assert [each["mode"] for each in record["results"]] == ["none", "paper", "step", "covariance"]
    assert record["results"][0]["epsilon"] is None
    assert record["results"][0]["error"] < 1e-9
    table = CliRunner().invoke(audit, words[:5], standalone_mode=False)
    assert "Without noise it knows both" in table.output
