"""What really leaves a private silo: its law, its lattice, its price by another accountant."""

import functools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from dp_accounting import pld
from msgspec import structs
from private_silos import (
    COVARIANCE,
    DELTA,
    EPSILON,
    PAPER,
    STEP,
    D,
    R,
    T,
    ask,
    basis,
    bounded_rows,
    private_silo,
    refused,
    steps,
)
from scipy import stats

from budgets import moment_bound
from federations import ASK_MOMENT
from fedpower.exceptions import InputError
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.sensitivity import moved_by_row
from fedpower.protocol import release as release_module
from fedpower.protocol.messages import AskMoment, AskSteps, LocalSteps, Refusal, read_only
from fedpower.protocol.release import noise_of
from fedpower.protocol.silo import NOT_YOURS
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.lattice import SIDE
from fedpower.sums.local import KernelChoice, LocalMoment
from problems import ArrayMoment

WHOLE = AskSteps(basis=read_only(np.eye(D)), n_local_steps=1)
CENTRED = [replace(study, center=True) for study in (STEP, COVARIANCE)]


@pytest.fixture
def noised(monkeypatch):
    made = []

    def record(query, study, sizes):
        noise = noise_of(query, study, sizes)
        unit = sizes[0] * SIDE**2 if query.label == "covariance" else 1
        step = 2.0 ** -noise.exponents[0]
        moved = math.sqrt(noise.sensitivity.squared)
        if noise.sensitivity.real:
            moved += step * math.sqrt(noise.sensitivity.size)
        std = noise.stds[0] / unit
        made.append(SimpleNamespace(std=std, spacing=step / unit, sensitivity=moved / unit))
        return noise

    monkeypatch.setattr(release_module, "noise_of", record)
    return made


def ask_everything(study, ledger, **how):
    silo = private_silo(study, ledger, **how)
    questions = [AskMoment(label="mean")] if study.center else []
    questions += [steps(seed) for seed in range(1 if study.noise == "covariance" else T)]
    return [ask(silo, question) for question in questions]


def epsilon_by_pld(made, delta, *, pessimistic):
    losses = [
        pld.privacy_loss_distribution.from_gaussian_mechanism(
            release.std,
            sensitivity=release.sensitivity,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=1e-3,
        )
        for release in made
    ]
    return functools.reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(delta)


@pytest.mark.parametrize(
    ("study", "epsilon"), [*zip((STEP, COVARIANCE, *CENTRED), (0.5, 4.0, 4.0, 0.5), strict=True)]
)
def test_another_accountant_finds_the_epsilon_that_was_asked(study, epsilon, noised):
    study = replace(study, epsilon=epsilon)
    with Ledger.in_memory(epsilon, DELTA) as ledger:
        answers = ask_everything(study, ledger)
        spent = ledger.spent().epsilon
    assert not any(isinstance(answer, Refusal) for answer in answers)
    assert len(noised) == sum(terms.times for terms in study.queries)
    above = epsilon_by_pld(noised, DELTA, pessimistic=True)
    below = epsilon_by_pld(noised, DELTA, pessimistic=False)
    assert below - 1e-6 <= spent <= epsilon * (1 + 1e-9)
    assert 0.99 * epsilon <= below <= epsilon
    assert above <= 1.01 * epsilon
    assert spent == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("study", [STEP, PAPER, COVARIANCE, *CENTRED], ids=lambda s: s.digest[:6])
def test_the_sensitivity_paid_for_is_the_theorem_s_and_more(study, noised, ledger):
    ask_everything(study, ledger)
    s = len(bounded_rows())
    mean, product = moved_by_row("mean") / s, moved_by_row("product", R) / s
    least = [mean] * study.center + [product] * T
    if study.noise == "covariance":
        least = [moment_bound(s, center=study.center)]
    for bound, release in zip(least, noised, strict=True):
        assert bound * (1 - 1e-15) < release.sensitivity < bound * (1 + 1e-6)


@pytest.mark.parametrize("study", [STEP, PAPER, CENTRED[0]], ids=lambda s: s.digest[:6])
def test_released_numbers_are_multiples_of_the_lattice_s_spacing(study, noised, ledger):
    silo = private_silo(replace(study, iteration_rank=D), ledger)
    answer = ask(silo, WHOLE)
    left = [np.append(answer.product, answer.total_variance)]
    left += [ask(silo, AskMoment(label="mean")).mean] if study.center else []
    for values, release in zip(left, noised, strict=True):
        in_steps = values / release.spacing
        assert np.array_equal(in_steps, np.rint(in_steps))
        assert release.std / release.spacing >= 2**30


def test_a_released_moment_is_symmetric_with_half_the_variance_off_the_diagonal():
    source = SeededNoiseForExperiments(3)
    study = replace(COVARIANCE, iteration_rank=D)
    exact = ArrayMoment(bounded_rows()).moment()
    seen = []
    for _ in range(40):
        with Ledger.in_memory(EPSILON, DELTA) as ledger:
            product = ask(private_silo(study, ledger, source=source), WHOLE).product
            assert np.array_equal(product, product.T)
            seen.append(product - exact)
    noise = np.array(seen) / study.budget.std(len(bounded_rows()))
    on, off = np.diag_indices(D), np.tril_indices(D, -1)
    assert stats.kstest(noise[:, on[0], on[1]].ravel(), "norm").pvalue > 1e-7
    assert stats.kstest(noise[:, off[0], off[1]].ravel() * math.sqrt(2), "norm").pvalue > 1e-7


def test_local_steps_are_noised_at_every_step_and_charged_for_each(noised, ledger):
    silo = private_silo(STEP, ledger)
    assert isinstance(ask(silo, steps(0, 3)), LocalSteps)
    assert len(noised) == 3
    (entry,) = ledger.entries()
    assert entry.mu == pytest.approx(STEP.budget.price("product").mu * math.sqrt(3))


def test_one_column_alone_has_no_trace_beside_it_and_less_noise(ledger):
    one = replace(STEP, iteration_rank=1)
    silo = private_silo(one, ledger)
    answer = ask(silo, AskSteps(basis=basis(0, 1), n_local_steps=1))
    assert answer.total_variance is None
    assert one.budget.std(300) == pytest.approx(STEP.budget.std(300) / math.sqrt(2), 1e-6)


def test_about_a_centre_the_noise_grows_with_the_rows(noised, ledger):
    center = read_only(np.full(D, 0.2))
    study = replace(STEP, center=True)
    silo = private_silo(study, ledger)
    ask(silo, steps(0))
    ask(silo, steps(0, center=center))
    growth = (1 + float(np.linalg.norm(center))) ** 2
    assert noised[1].std == pytest.approx(noised[0].std * growth, rel=1e-6)


def test_a_noised_moment_serves_every_question_after_it_for_nothing_also_about_a_centre(noised, ledger):
    study = replace(COVARIANCE, center=True, iteration_rank=D)
    center = read_only(np.linspace(-0.1, 0.1, D))
    silo = private_silo(study, ledger)
    S, m = ask(silo, WHOLE).product, ask(silo, AskMoment(label="mean")).mean
    about = ask(silo, structs.replace(WHOLE, center=center))
    plain = ask(silo, WHOLE)
    assert isinstance(ask(silo, steps(1, 20, center=m, shift=0.1), round=7), LocalSteps)
    assert ledger.spent().n_releases == 1
    c = np.asarray(center)
    expected = S - np.outer(c, m) - np.outer(m, c) + np.outer(c, c)
    # answers are rounded to float32, far below the noise
    np.testing.assert_allclose(about.product, expected, rtol=1e-6, atol=1e-6)
    assert about.total_variance - plain.total_variance == pytest.approx(c @ c - 2 * c @ m)
    assert len(noised) == 1


def test_studies_of_other_rank_share_a_moment_and_those_of_other_terms_do_not():
    others = {"epsilon": 0.5}, {"delta": 1e-7}, {"center": True}, {"treatment": "another bound"}
    with Ledger.in_memory(10.0, DELTA) as ledger:
        first = ask(private_silo(COVARIANCE, ledger), steps(0)).product
        again = ask(private_silo(replace(COVARIANCE, iteration_rank=3), ledger), steps(0)).product
        assert np.array_equal(first, again)
        for place, change in enumerate(others):
            assert ledger.spent().n_releases == 1 + place
            other = ask(private_silo(replace(COVARIANCE, **change), ledger), steps(0)).product
            assert not np.any(other == first)


class Unreadable(ArrayMoment):
    def _fail(self, *_):
        raise InputError("column 'hiv' of /data/patients.csv must hold numbers, got one at row 17")

    product = moment = mean = trace = sums = _fail


@pytest.mark.parametrize("study", [STEP, COVARIANCE])
def test_sentences_about_rows_stay_with_the_operator(study, caplog, ledger):
    silo = private_silo(study, ledger, rows=Unreadable(bounded_rows()))
    answer = ask(silo, steps(0))
    assert ledger.spent().n_releases == 0
    assert answer == Refusal(reason=NOT_YOURS)
    assert "row 17" in caplog.text


def test_sentences_about_the_ledger_s_file_stay_with_the_operator(tmp_path, caplog):
    ledger = Ledger.create(tmp_path / "ledger of ward 7.db", epsilon=EPSILON, delta=DELTA)
    silo = private_silo(STEP, ledger)
    ledger.close()
    assert "ward" not in ask(silo, steps(0)).reason
    assert "ward" in caplog.text


# Noise is made for the rows that were summed: where they are not those enrolled, nothing leaves


def write(path, rows):
    table = pl.DataFrame(rows, schema=[f"c{place}" for place in range(D)])
    table.write_parquet(path) if path.suffix == ".parquet" else table.write_csv(path)


def rows_in(path, **options):
    choice = KernelChoice(kind="product", reason="as the test says")
    return LocalMoment(open_source(path), RowTreatment(row_norm=1.0), choice=choice, **options)


def few():
    return np.full((2, D), 0.4)


def one_cell_moved():
    rows = bounded_rows()
    rows[7, 3] += 1e-12
    return rows


@pytest.mark.parametrize("study", [STEP, PAPER])
@pytest.mark.parametrize("others", [few, one_cell_moved])
def test_a_file_overwritten_between_two_steps_costs_and_gives_nothing(
    tmp_path, caplog, study, others, ledger
):
    path = tmp_path / "north.csv"
    write(path, bounded_rows())
    silo = private_silo(study, ledger, rows=rows_in(path))
    first = ask(silo, steps(0))
    assert isinstance(first, LocalSteps)
    spent = ledger.spent()
    write(path, others())
    assert ask(silo, steps(1)) == Refusal(reason=NOT_YOURS)
    assert ledger.spent() == spent
    assert "must not change while it is in use" in caplog.text
    again = ask(silo, steps(0))  # what was released already is given again
    assert np.array_equal(again.product, first.product)


def test_a_file_overwritten_within_local_steps_costs_and_gives_nothing(tmp_path, ledger):
    path = tmp_path / "north.csv"
    write(path, bounded_rows())
    moment = rows_in(path)
    product, asked = moment.product, []

    def overwriting(basis, center=None):
        if asked:
            write(path, few())
        asked.append(basis)
        return product(basis, center)

    moment.product = overwriting
    moment.prepare()
    assert ask(private_silo(STEP, ledger, rows=moment), steps(0, n_local_steps=3)) == Refusal(
        reason=NOT_YOURS
    )
    assert ledger.spent().n_releases == 0
    assert len(asked) == 2


@pytest.mark.parametrize("body", [ASK_MOMENT, AskMoment(label="mean"), steps(0)], ids=lambda body: body.kind)
def test_a_table_replaced_after_its_rows_were_counted_costs_and_gives_nothing(tmp_path, body, ledger):
    path = tmp_path / "north.parquet"
    write(path, bounded_rows())
    moment = rows_in(path, on_lattice=True)
    assert moment.n_rows == 300
    write(path, few())
    assert refused(ask(private_silo(COVARIANCE, ledger, rows=moment), body))
    assert ledger.spent().n_releases == 0
