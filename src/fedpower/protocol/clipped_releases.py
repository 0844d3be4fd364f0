"""What a silo of a clipped fit lets out where it noises its sums by itself."""

from dataclasses import replace
from typing import cast

import numpy as np

from fedpower.errors import InputError, ProtocolError
from fedpower.privacy.budget import MOMENT, Price
from fedpower.protocol.clipped_sums import ClippedSums, is_next, plain_noise
from fedpower.protocol.messages import (
    AskMean,
    AskNoisedSum,
    AskSteps,
    LocalSteps,
    MeanRow,
    NoisedSum,
    PackedMoment,
)
from fedpower.protocol.releases import MomentReleases
from fedpower.protocol.secure_releases import share_of_integers
from fedpower.sums.local import LocalMoment


class ClippedReleases(MomentReleases):
    """Mode ``clipped``: perhaps the moment, then clipped products, each noised and charged by itself."""

    def noised_sum(self, ask: AskNoisedSum) -> NoisedSum:
        """Return the noised whole numbers of the mean, or of a clipped product."""
        if not is_next(self._study, ask):
            raise ProtocolError(
                "a noised sum must be one of those that the study lists, by its number and name, got "
                "another; ask for them in the study's order"
            )
        size = self._study.sums[ask.index].size
        try:
            noise = plain_noise(self._study, ask, self.n_rows)
        except InputError as error:  # of public facts: the coordinator may read it
            raise ProtocolError(str(error)) from None
        price = self._budget.price_of_sum(ask.index)

        def payload() -> bytes:
            rows = ClippedSums(cast("LocalMoment", self._moment), self._study)
            made = rows.summand(ask.label, ask.public)
            return (
                share_of_integers(made, noise, size=size, n_rows=self.n_rows, source=self._source)
                .astype("<i8")
                .tobytes()
            )

        raw = self._ledger.release(
            key=self._key(
                "clipped", self._digest.encode(), b"%d" % ask.index, ask.label.encode(), ask.public
            ),
            purpose=f"noised sum {ask.label}",
            study=self._booked_as,
            data=self._data,
            mu=price.mu,
            slack_delta=price.slack_delta,
            study_mu=self._budget.total_mu,
            payload=payload,
        )
        return NoisedSum(words=np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False))

    def moment(self, *, run: str) -> PackedMoment:
        """Return the noised moment of a warm start."""
        if not any(label == MOMENT for label, _, _ in self._study.sums):
            raise ProtocolError(
                "the moment must be asked for in a study that lists it, got one that starts cold; ask "
                "for its sums"
            )
        return replace(super().moment(run=run), made_for="")

    def mean(self, ask: AskMean, *, run: str) -> MeanRow:
        """Refuse: the mean is a sum like others."""
        raise ProtocolError(_NO_STEPS)

    def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
        """Refuse: a clipped fit has no local steps."""
        raise ProtocolError(_NO_STEPS)

    @property
    def _price(self) -> Price:
        index = [label for label, _, _ in self._study.sums].index(MOMENT)
        return self._budget.price_of_sum(index)

    @property
    def _terms(self) -> tuple[bytes, ...]:
        return (self._digest.encode(),)


_NO_STEPS = "a clipped fit must be asked for the sums that its study lists, got another question; ask those"
