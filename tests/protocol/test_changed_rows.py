"""Noise is made for the rows that were summed: where they are not those enrolled, nothing leaves."""

import numpy as np
import polars as pl
import pytest
from private_silos import (
    DELTA,
    EPSILON,
    MOMENT,
    PAPER,
    STEP,
    D,
    ask,
    bounded_rows,
    private_silo,
    refused,
    steps,
)

from federations import ASK_MOMENT
from fedpower.errors import InputError
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.messages import AskMoment, LocalSteps, Refusal
from fedpower.protocol.query import Moment
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import KernelChoice, LocalMoment

NOT_YOURS = Refusal(reason="the silo could not answer; its operator's log says why")


def write(path, rows):
    table = pl.DataFrame(rows, schema=[f"c{place}" for place in range(D)])
    table.write_parquet(path) if path.suffix == ".parquet" else table.write_csv(path)


def rows_in(path, kind="product", **options):
    choice = KernelChoice(kind=kind, reason="as the test says")
    return LocalMoment(open_source(path), RowTreatment(row_norm=1.0), choice=choice, **options)


def few():
    return np.full((2, D), 0.4)


def one_cell_moved():
    rows = bounded_rows()
    rows[7, 3] += 1e-12
    return rows


@pytest.mark.parametrize("study", [STEP, PAPER])
@pytest.mark.parametrize("others", [few, one_cell_moved])
def test_a_file_overwritten_between_two_steps_costs_and_gives_nothing(tmp_path, caplog, study, others):
    path = tmp_path / "north.csv"
    write(path, bounded_rows())
    with Ledger.in_memory(EPSILON, DELTA) as ledger:
        silo = private_silo(study, ledger, moment=rows_in(path))
        first = ask(silo, steps(0))
        assert isinstance(first, LocalSteps)
        spent = ledger.spent()
        write(path, others())
        assert ask(silo, steps(1)) == NOT_YOURS
        assert ledger.spent() == spent
        assert "must hold the same rows" in caplog.text
        again = ask(silo, steps(0))  # what was released already is given again
        assert np.array_equal(again.product, first.product)


def test_a_file_overwritten_within_local_steps_costs_and_gives_nothing(tmp_path):
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
    with Ledger.in_memory(EPSILON, DELTA) as ledger:
        moment.prepare()
        assert ask(private_silo(STEP, ledger, moment=moment), steps(0, n_local_steps=3)) == NOT_YOURS
        assert ledger.spent().n_releases == 0
    assert len(asked) == 2


@pytest.mark.parametrize("body", [ASK_MOMENT, AskMoment(label="mean"), steps(0)], ids=lambda body: body.kind)
def test_a_table_replaced_after_its_rows_were_counted_costs_and_gives_nothing(tmp_path, body):
    path = tmp_path / "north.parquet"
    write(path, bounded_rows())
    moment = rows_in(path, on_lattice=True)
    assert moment.n_rows == 300
    write(path, few())
    with Ledger.in_memory(EPSILON, DELTA) as ledger:
        assert refused(ask(private_silo(MOMENT, ledger, moment=moment), body))
        assert ledger.spent().n_releases == 0


def test_a_share_of_a_secure_sum_is_of_the_enrolled_rows(tmp_path):
    path = tmp_path / "north.parquet"
    write(path, bounded_rows())
    late, early = rows_in(path, on_lattice=True), rows_in(path, on_lattice=True)
    assert late.n_rows == 300
    early.prepare()
    before = early.sums()
    write(path, few())
    query = Moment(n_features=D, mean_weight=0.0)
    with pytest.raises(InputError, match="must hold the same rows"):
        query.evaluate(late, (0, 0, 0))
    query.evaluate(early, (0, 0, 0))
    assert early.sums() is before
