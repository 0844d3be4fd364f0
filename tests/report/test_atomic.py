"""Outputs appear whole or not at all, and what stood there before stays until they do."""

from pathlib import Path
from typing import Any

import pytest

from fedpower.exceptions import InputError
from fedpower.files import new_folder, write_whole

RENAME = Path.rename


def write(folder: Path, **files: Any) -> None:
    with new_folder(folder, known=("a", "b"), force=True) as place:
        for name, text in files.items():
            (place / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("which", [1, 2])
def test_an_earlier_folder_survives_under_its_name_whichever_rename_fails(tmp_path, monkeypatch, which):
    write(tmp_path / "out", a="earlier")
    renames = iter([RENAME, full] if which == 2 else [full])

    def rename(*paths: Path) -> object:
        return next(renames, RENAME)(*paths)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(InputError, match="must be in a folder that can be written"):
        write(tmp_path / "out", a="later")
    assert contents(tmp_path / "out") == {"a": "earlier"}
    with pytest.raises(TypeError):
        write(tmp_path / "out", a="half", b=7)
    assert contents(tmp_path / "out") == {"a": "earlier"}
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_a_replaced_folder_is_the_new_one_where_it_is_also_when_reached_by_a_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    write(real, a="earlier")
    link.symlink_to(real)
    write(link, b="later")
    assert link.is_symlink()
    assert contents(real) == {"b": "later"}
    write(real, a="last")
    assert contents(real) == {"a": "last"}
    assert sorted(tmp_path.iterdir()) == [link, real]


def test_a_file_that_could_not_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    write_whole(tmp_path / "a", "earlier")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "a", "later")
    assert contents(tmp_path) == {"a": "earlier"}
