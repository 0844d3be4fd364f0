"""How components stand to the noise of the release they come from."""

import numpy as np

from fedpower.report.result import standings


def test_a_component_that_is_not_counted_as_above_the_noise_is_never_well_above_it():
    high = np.array([9.0, 8.0, 7.0, 1.5, 0.5])
    assert standings(high, edge=1.0, n_above=2) == ["signal", "signal", "near", "near", "noise"]
    assert standings(high, edge=1.0, n_above=None) == ["unknown"] * 5
    assert standings(high, edge=0.0, n_above=None) == ["signal"] * 5
