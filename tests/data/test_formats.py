"""A new format is one line of registration: it is opened, found in folders, fingerprinted and fitted."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedpower import FedPCA
from fedpower.errors import InputError
from fedpower.rows.files import FORMATS, register
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import is_text, open_source


def test_a_registered_format_is_read_like_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pl.DataFrame(np.random.default_rng(0).standard_normal((90, 3)), schema=["a", "b", "c"])
    (tmp_path / "north.avro").write_bytes(b"")
    with pytest.raises(InputError, match=r"must end in one of .*\.parquet, .* got '\.avro'"):
        open_source(tmp_path / "north.avro")
    monkeypatch.setitem(FORMATS, ".avro", FORMATS[".parquet"])  # taken out again after the test
    register(".avro", lambda path: pl.read_avro(path).lazy(), kind="Avro")
    with pytest.raises(InputError, match="must be a complete Avro file"):
        open_source(tmp_path / "north.avro")
    rows[:50].write_avro(tmp_path / "north.avro")
    rows[50:].write_avro(tmp_path / "south.avro")
    fit = FedPCA(2, epsilon=float("inf")).fit_silos([tmp_path / "north.avro", tmp_path / "south.avro"])
    pooled = FedPCA(2, epsilon=float("inf")).fit_silos([tmp_path])
    np.testing.assert_allclose(fit.explained_variance_, pooled.explained_variance_, rtol=1e-10)
    assert open_source(tmp_path).columns == ("a", "b", "c")
    assert len({fingerprint(open_source(tmp_path / name)) for name in ("north.avro", "south.avro")}) == 2
    assert not is_text(tmp_path)
