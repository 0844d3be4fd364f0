"""What a silo lets out where the moment is noised: one charged release, and arithmetic on it."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpower.privacy.integer_release import packed_integers, perturb_integers
from fedpower.privacy.summary import unpack
from fedpower.protocol.charged_releases import ChargedReleases
from fedpower.protocol.local_steps import take_local_steps
from fedpower.protocol.messages import AskSteps, LocalSteps, MeanRow, PackedMoment, read_only
from fedpower.protocol.releases import integers_of, packed
from fedpower.protocol.wire import rounded

Array = NDArray[np.float64]


class MomentReleases(ChargedReleases):
    """Mode ``moment``: A_i, its mean row and its trace are noised once; all else is post-processing."""

    _summary: tuple[Array, Array | None, float] | None = None
    _made_for = ""
    """The run for which the release was made: others that are given it analyse it once more."""

    def mean(self) -> MeanRow:
        """Return the mean row of the one noised release."""
        _, mean, _ = self._released()
        assert mean is not None, "a study that centres releases the mean"
        return MeanRow(mean=read_only(mean))

    def steps(self, ask: AskSteps) -> LocalSteps:
        """Return local power steps on the noised moment: free."""
        moment, mean, trace = self._released()
        center = ask.center
        if center is None:
            return self._rounded(
                take_local_steps(lambda basis: moment @ basis, ask, total_variance=trace)
            )
        assert mean is not None

        def multiply(basis: Array) -> Array:
            about_mean = mean @ basis
            about_center = center @ basis
            return (
                moment @ basis
                - np.outer(center, about_mean - about_center)
                - np.outer(mean, about_center)
            )

        total = trace - 2 * float(center @ mean) + float(center @ center)
        return self._rounded(take_local_steps(multiply, ask, total_variance=total))

    def moment(self) -> PackedMoment:
        """Return the noised moment itself, about the silo's own noised mean where the study centres."""
        # With every digit: what hides a silo's own in the sum is added there, for all of them together.
        moment, mean, trace = self._released()
        if mean is None:
            sent = packed(moment, None, trace)
        else:
            sent = packed(moment - np.outer(mean, mean), mean, trace - float(mean @ mean))
        return replace(sent, made_for=self._made_for)

    @property
    def _entry_std(self) -> float:
        """The noise off the diagonal, which is also about that of a product's entries."""
        return self._budget.std(self.n_rows) / math.sqrt(2.0)

    def _rounded(self, outcome: LocalSteps) -> LocalSteps:
        product = read_only(rounded(outcome.product, self._entry_std))
        return replace(outcome, product=product, made_for=self._made_for)

    def _released(self) -> tuple[Array, Array | None, float]:
        if self._summary is None:
            self._summary = self._release()
        return self._summary

    def _release(self) -> tuple[Array, Array | None, float]:
        budget, with_mean = self._budget, self._study.center
        noise, n_rows = budget.integers, self.n_rows
        exact = integers_of(self._moment, noise, n_rows=n_rows, with_mean=with_mean)

        def payload() -> bytes:
            noised = perturb_integers(*exact, noise=noise, source=self._source)
            vector = packed_integers(*noised, n_rows=n_rows, noise=noise)
            run = self._run.encode()
            return len(run).to_bytes(2, "little") + run + vector.astype("<f8").tobytes()

        raw = self._ledger.release(
            key=self._key("moment", self._study.moment_terms.encode()),
            purpose="moment, mean and trace" if with_mean else "moment and trace",
            study=self._booked_as,
            data=self._data,
            mu=budget.mu,
            slack_delta=budget.slack_delta,
            payload=payload,
        )
        length = int.from_bytes(raw[:2], "little")
        self._made_for = raw[2 : 2 + length].decode()
        vector = np.frombuffer(raw[2 + length :], dtype="<f8")
        return unpack(vector, budget.n_features, with_mean=with_mean)
