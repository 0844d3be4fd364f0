"""The game against the coordinator's view of a secure sum, with a silo that tells it all it knows."""

import json
import math

import pytest
from click.testing import CliRunner

from fedpower.cli.privacy import audit
from fedpower.experiments import audit as audits
from fedpower.experiments.audit import Game, audit_mode
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise
from fedpower.protocol.study import Study

pytestmark = pytest.mark.audits

TERMS = {"delta": 1e-5, "confidence": 1 - 1e-6}
centred = pytest.mark.parametrize("center", [False, True])


@centred
@pytest.mark.parametrize("n_rows", [2, 50, 1000])
def test_the_worlds_are_as_far_apart_as_the_price_list_says(center, n_rows):
    study = Study(
        columns=None, n_features=4, iteration_rank=4, center=center, noise="moment", epsilon=4.0, delta=1e-5
    )
    game = Game(study, n_rows, SystemNoise(), is_secure=True)
    charged = game.budget.total_mu
    assert game.mu <= charged
    assert game.mu == pytest.approx(charged, rel=1e-5)


@centred
def test_shared_noise_is_not_accused(center):
    """Fresh noise; accused by chance with probability 1e-6 at most."""
    report = audit_mode("secure", epsilon=10.0, center=center, n_runs=60, **TERMS)
    assert not report.violation
    assert report.epsilon_lower <= report.exact_epsilon <= report.claimed_epsilon


def test_shares_too_small_by_the_root_of_two_are_caught():
    report = audit_mode(
        "secure",
        epsilon=10.0,
        delta=1e-5,
        n_runs=400,
        noise_factor=math.sqrt(0.5),
        source=SeededNoiseForExperiments(0),
        confidence=0.95,
    )
    assert report.verdict == "VIOLATION"
    assert report.epsilon_lower > report.claimed_epsilon


def test_the_command_audits_secure_sums(monkeypatch):
    monkeypatch.setattr(audits, "SystemNoise", lambda: SeededNoiseForExperiments(0))
    words = ("--mode", "secure", "--epsilon", "10", "--runs", "120", "--confidence", "0.99")
    result = CliRunner().invoke(audit, [*words, "--halved", "--json"], standalone_mode=False)
    record = json.loads(result.stdout)
    assert result.return_value == 1
    (control,) = record["audits"]
    assert (control["mode"], control["noise_factor"]) == ("secure", 0.5)
    assert control["violation"]
    assert "mode 'secure' loses at least" in record["verdict"]
