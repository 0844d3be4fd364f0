"""Outputs appear whole or not at all, and what stood there before stays until they do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedpower.errors import InputError
from fedpower.report.files import new_folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


@pytest.fixture
def failing_rename(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the rename with a given number fail as on a full disk."""

    def arm(which: int) -> None:
        seen = 0
        real = Path.rename

        def rename(self: Path, target: Path) -> Path:
            nonlocal seen
            seen += 1
            if seen == which:
                raise OSError(28, "No space left on device")
            return real(self, target)

        monkeypatch.setattr(Path, "rename", rename)

    return arm


@pytest.mark.parametrize("which", [1, 2])
def test_an_earlier_folder_survives_under_its_name_whichever_rename_fails(
    tmp_path: Path, failing_rename: Callable[[int], None], which: int
) -> None:
    out = tmp_path / "out"
    with new_folder(out, known=("a.txt",)) as place:
        (place / "a.txt").write_text("earlier")
    failing_rename(which)
    with (
        pytest.raises(InputError, match="must be in a folder that can be written"),
        new_folder(out, known=("a.txt",), force=True) as place,
    ):
        (place / "a.txt").write_text("later")
    assert contents(out) == {"a.txt": "earlier"}
    assert list(tmp_path.iterdir()) == [out]


def test_a_replaced_folder_is_the_new_one_and_nothing_else_is_left(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name, text in (("a.txt", "earlier"), ("b.txt", "later")):
        with new_folder(out, known=("a.txt", "b.txt"), force=True) as place:
            (place / name).write_text(text)
    assert contents(out) == {"b.txt": "later"}
    assert list(tmp_path.iterdir()) == [out]


def test_a_folder_reached_by_a_link_is_replaced_where_it_is(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    with new_folder(real, known=("a.txt",)) as place:
        (place / "a.txt").write_text("earlier")
    link.symlink_to(real)
    with new_folder(link, known=("a.txt",), force=True) as place:
        (place / "a.txt").write_text("later")
    assert link.is_symlink()
    assert contents(real) == {"a.txt": "later"}
    assert sorted(tmp_path.iterdir()) == [link, real]
