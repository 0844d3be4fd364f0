"""A new analysis is one module and one line of the registry: Python and the command line then have it."""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedpower import FedCovariance, analysis
from fedpower.analysis import base
from fedpower.cli import main
from fedpower.exceptions import require
from fedpower.options import setting
from fedpower.report.covariance import Covariance


class Spread(base.Analysis):
    """Which columns spread most: an example.

    Attributes
    ----------
    deviation_ : ndarray
        Their standard deviations.
    """

    kind = "spread"
    most: int = setting(2, "How many columns.", "count")

    def _fit(self, release: Covariance) -> None:
        d = release.n_features
        require(self.most <= d, "most", f"at most {d} columns", self.most)
        self.deviation_ = np.sqrt(np.sort(np.diagonal(release.covariance))[::-1][: self.most])

    def _page(self) -> base.Contents:
        yield f"Spread of {self.most} columns"
        yield "Largest first."
        yield base.Table("Spread", "spread.csv", {"Deviation": self.deviation_})


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Covariance:
    module = ModuleType("spread.example")
    module.Spread = Spread  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spread.example", module)
    monkeypatch.setitem(
        analysis.ANALYSES, "spread", ("spread.example", "Spread", "Which columns spread most.")
    )
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(400, 3)) * [1.0, 3.0, 2.0]
    found = FedCovariance(epsilon=float("inf")).fit_silos([rows]).release_
    found.save("covariance")
    return found


def test_a_registered_analysis_runs_from_python_and_the_command_line(release, capsys):
    def derive(*words: str) -> int:
        return main(["analyze", words[0], "covariance", *words[1:]], standalone_mode=False)

    model = analysis.Spread(most=1).fit(release)
    assert model.get_params() == {"most": 1}
    assert model.deviation_ == pytest.approx([3.0], rel=0.1)
    assert derive("spread", "-o", "out") == 0
    assert "Spread of 2 columns" in capsys.readouterr().out
    assert Path("out/spread.csv").exists()
    assert derive("spread", "--most", "1", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["deviation"] == model.deviation_.tolist()
    assert facts["most"] == 1
    assert derive("spread", "--most", "9") == 2
    assert "at most 3 columns, got 9" in capsys.readouterr().err
