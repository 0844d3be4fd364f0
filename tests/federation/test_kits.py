"""Kits for parties whatever they may be called."""

from pathlib import Path

import pytest
from studies import write_study

from fedpower.errors import InputError
from fedpower.federation.kits import kit_study, make_kits


def test_silos_may_have_dashes_and_digits_in_their_names(tmp_path: Path) -> None:
    names = ["site-01", "site-02", "3-east-wing"]
    study = write_study(tmp_path, silos={"names": names})
    make_kits(study, tmp_path / "kits")
    for name in names:
        kit = tmp_path / "kits" / name
        assert (kit / "startup" / "client.crt").is_file()
        assert kit_study(kit).digest == study.digest
        assert (kit / "startup" / "client.key").stat().st_mode & 0o077 == 0


def test_a_kit_of_one_study_is_not_made_over_another(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    make_kits(study, tmp_path / "kits")
    with pytest.raises(InputError, match="must be new or empty"):
        make_kits(study, tmp_path / "kits")
