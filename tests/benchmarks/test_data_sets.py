"""The data sets: public bounds that hold, labels, and one sentence for what is not there."""

import base64
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from benchmarks import data_sets
from benchmarks.data_sets import (
    USUAL_CELLS,
    DataSet,
    a9a_minmax,
    a9a_unit,
    available,
    breast_cancer,
    digits,
    mnist,
)
from benchmarks.runner import MissingError

A9A_LINES = "-1 3:1 11:1 14:1\n+1 5:1 7:1 123:1\n-1 5:1 11:1\n"


@pytest.fixture
def a9a(tmp_path: Path) -> Path:
    file = tmp_path / "a9a.svm"
    file.write_text(A9A_LINES)
    return file


@pytest.mark.parametrize("load", [digits, breast_cancer])
def test_bounded_rows_have_norm_at_most_one_and_a_label_each(load: object) -> None:
    data: DataSet = load()  # type: ignore[operator]
    norms = np.linalg.norm(data.bounded(), axis=1)
    assert norms.max() <= 1.0
    assert data.labels.shape == (len(data.rows),)
    assert data.facts()["rows"] == len(norms)


def test_the_code_book_has_the_columns_in_the_table_s_order() -> None:
    kinds = ("mean {}", "{} error", "worst {}")
    named = [kind.format(cell) for kind in kinds for cell in USUAL_CELLS]
    assert list(load_breast_cancer().feature_names) == named


def test_a9a_has_its_rows_and_labels_in_both_treatments(a9a: Path) -> None:
    scaled, unit = a9a_minmax(a9a), a9a_unit(a9a)
    assert scaled.labels.tolist() == unit.labels.tolist() == [-1, 1, -1]
    assert scaled.rows.shape == (3, 123)
    assert np.linalg.norm(unit.bounded(), axis=1) == pytest.approx(1.0)
    # The bound of the 14 attributes is far from these short rows: they are divided by it, not clipped.
    assert np.linalg.norm(scaled.bounded(), axis=1) == pytest.approx(
        np.linalg.norm(scaled.rows, axis=1) / np.sqrt(14)
    )


def test_a_data_set_that_is_not_there_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    said: list[str] = []
    found = available({"a9a": lambda: a9a_unit(tmp_path / "none"), "digits": digits}, said.append)
    assert [data.name for data in found] == ["digits"]
    assert len(said) == 1
    assert said[0].startswith("a9a is left out: ")


def test_mnist_is_read_from_its_archive_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.arange(2 * 784, dtype=np.uint8).reshape(2, 784)
    archive = _archive(bytes(16) + images.tobytes(), bytes(8) + bytes([7, 3]))
    place = tmp_path / "mnist.tgz"
    place.write_bytes(archive)
    digest = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    monkeypatch.setattr(data_sets, "MNIST", place.as_uri())
    monkeypatch.setattr(data_sets, "MNIST_SHA512", digest)
    first = mnist(tmp_path / "cache")
    place.unlink()
    second = mnist(tmp_path / "cache")
    assert first.labels.tolist() == second.labels.tolist() == [7, 3]
    assert np.array_equal(second.rows, images / 255.0)


def test_an_archive_that_is_another_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "mnist.tgz"
    place.write_bytes(b"something else")
    monkeypatch.setattr(data_sets, "MNIST", place.as_uri())
    with pytest.raises(MissingError, match="checksum"):
        mnist(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def _archive(images: bytes, labels: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as files:
        for name, content in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)):
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(content)
            files.addfile(member, io.BytesIO(content))
    return made.getvalue()
