"""Example 1: without noise a curious coordinator has the moment and a row; with noise it has neither."""

import json
import math

import pytest
from click.testing import CliRunner

from fedpower.cli.privacy import audit
from fedpower.errors import InputError
from fedpower.experiments.attack import AttackSetting, attack, draw_attack
from fedpower.privacy.noise import SeededNoiseForExperiments

pytestmark = pytest.mark.audits

SMALL = AttackSetting(n_rows=300, n_features=10, iteration_rank=3, n_steps=6)
SEEDS = range(4)


@pytest.fixture(scope="module")
def results():
    found = attack((0.5, 10.0), setting=SMALL, seeds=SEEDS, source=SeededNoiseForExperiments(0))
    return {(each.mode, each.epsilon): each for each in found}


def test_without_noise_the_moment_and_the_row_are_read_off(results):
    found = results["none", math.inf]
    assert found.error_range[1] < 1e-9
    assert found.row_cosine_range[0] > 1 - 1e-9


@pytest.mark.parametrize("mode", ["paper", "step", "moment"])
def test_at_half_an_epsilon_the_row_is_hidden_in_every_mode(results, mode):
    """Medians of 4 seeds, seeded; a cosine of 0.9 would be the row with an error of 26°."""
    assert results[mode, 0.5].row_cosine < 0.7
    assert results[mode, 0.5].error > 0.1


def test_more_privacy_is_a_worse_guess_and_the_moment_mode_is_the_most_useful(results):
    for mode in ("paper", "step", "moment"):
        assert results[mode, 0.5].error > results[mode, 10.0].error
    assert results["moment", 10.0].error < results["step", 10.0].error
    assert results["step", 0.5].error < results["paper", 0.5].error


def test_an_attack_on_nothing_or_a_picture_of_an_unknown_kind_is_refused(results, tmp_path):
    with pytest.raises(InputError, match="finite epsilons"):
        attack((math.inf,), setting=SMALL)
    with pytest.raises(InputError, match="one seed at least"):
        attack((1.0,), setting=SMALL, seeds=())
    with pytest.raises(InputError, match=r"must end in .png, .svg or .pdf, got 'a.xyz'"):
        draw_attack(list(results.values()), tmp_path / "a.xyz", SMALL)


def test_the_command_prints_json_and_draws(tmp_path):
    picture = tmp_path / "attack.png"
    words = ["--attack", "--epsilon", "1", "--runs", "1", "--n-steps", "6", "--json", "-o", str(picture)]
    result = CliRunner().invoke(audit, words, standalone_mode=False)
    record = json.loads(result.stdout)
    assert [each["mode"] for each in record["results"]] == ["none", "paper", "step", "moment"]
    assert record["results"][0]["epsilon"] is None
    assert record["results"][0]["error"] < 1e-9
    assert picture.read_bytes().startswith(b"\x89PNG")
    table = CliRunner().invoke(audit, words[:7], standalone_mode=False)
    assert "after 5 rounds the coordinator knows the moment" in table.output
