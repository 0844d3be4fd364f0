"""What a silo lets out where every step is noised: products and the mean row, each charged."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import ProtocolError
from fedpower.privacy.mechanism import Noised, perturb
from fedpower.protocol.charged_releases import ChargedReleases
from fedpower.protocol.local_steps import take_local_steps
from fedpower.protocol.messages import (
    AskSteps,
    LocalSteps,
    MeanRow,
    Message,
    PackedMoment,
    decode,
    encode,
    read_only,
)
from fedpower.protocol.private_study import study_mu
from fedpower.protocol.wire import rounded

Array = NDArray[np.float64]
Body = TypeVar("Body", MeanRow, LocalSteps)


class StepReleases(ChargedReleases):
    """Modes ``step`` and ``paper``: every step's product is noised [FP Alg. 2, line 6]."""

    def mean(self) -> MeanRow:
        """Return the noised mean row: one release of the study's T + 1."""
        budget, n_rows = self._budget, self._moment.n_rows

        def payload() -> bytes:
            noised = perturb(
                self._moment.mean(),
                sensitivity=budget.mean_sensitivity(n_rows),
                multiplier=budget.multiplier,
                source=self._source,
            )
            return _store(MeanRow(mean=noised.value))

        return _recall(self._release("mean", payload, 1, self._digest.encode()), MeanRow)

    def steps(self, ask: AskSteps) -> LocalSteps:
        """Return noised local steps; costs as many releases as there are steps."""
        if ask.shift != 0:
            raise ProtocolError(
                f"a shift must be 0 where products are noised, got {ask.shift}; "
                "only a noised moment needs one"
            )
        if ask.pooled is not None:
            raise ProtocolError(
                "drift-corrected steps must be asked for in a study with noise='moment' or none, got "
                "one whose products are noised: the product they need would be one more release"
            )

        def payload() -> bytes:
            traces: list[float] = []

            def multiply(basis: Array) -> Array:
                product, trace = self._noised_product(basis, ask.center)
                traces.append(trace)
                return product

            outcome = take_local_steps(multiply, ask)
            total = float(np.mean(traces)) if self._budget.with_trace else None
            std = self._budget.std(self.n_rows, _norm(ask.center))
            return _store(
                replace(
                    outcome,
                    product=read_only(rounded(outcome.product, std)),
                    total_variance=total,
                )
            )

        center = b"" if ask.center is None else ask.center.tobytes()
        question = (
            self._digest.encode(),
            repr((ask.basis.shape, ask.n_local_steps, ask.align)).encode(),
            np.ascontiguousarray(ask.basis).tobytes(),
            center,
        )
        return _recall(self._release("steps", payload, ask.n_local_steps, *question), LocalSteps)

    def moment(self) -> PackedMoment:
        """Refuse: only ``moment`` mode has a price for the moment itself."""
        raise ProtocolError(
            f"the moment itself must be asked for in a study with noise='moment', got one with "
            f"noise={self._budget.mode!r}; ask for steps"
        )

    def _noised_product(self, basis: Array, center: Array | None) -> tuple[Array, float]:
        """Return A_i Z plus noise, and tr A_i plus noise from the same release."""
        budget = self._budget
        product = self._moment.product(basis, center)
        values = product.ravel()
        if budget.with_trace:
            values = np.append(values, self._moment.trace(center))
        noised = self._perturb(values, self._moment.n_rows, _norm(center))
        return noised.value[: product.size].reshape(product.shape), float(noised.value[-1])

    def _perturb(self, values: Array, n_rows: int, center_norm: float) -> Noised:
        budget = self._budget
        printed = budget.mode == "paper"
        return perturb(
            values,
            sensitivity=budget.sensitivity(n_rows, center_norm),
            source=self._source,
            multiplier=None if printed else budget.multiplier,
            std=budget.std(n_rows, center_norm) if printed else None,
        )

    def _release(
        self, purpose: str, payload: Callable[[], bytes], count: int, *question: bytes
    ) -> bytes:
        budget = self._budget
        mu = budget.mu if purpose == "mean" else budget.product_mu(self.n_rows)
        return self._ledger.release(
            key=self._key(purpose, *question),
            purpose=f"{count} noised {purpose} ({budget.mode})",
            study=self._booked_as,
            data=self._data,
            mu=mu * math.sqrt(count),
            slack_delta=budget.slack_delta * count,
            study_mu=study_mu(budget, self.n_rows),
            payload=payload,
        )


def _norm(center: Array | None) -> float:
    return 0.0 if center is None else float(np.linalg.norm(center))


def _store(body: MeanRow | LocalSteps) -> bytes:
    return encode(Message(study="", run="", round=0, silo="", body=body))


def _recall(raw: bytes, kind: type[Body]) -> Body:
    body = decode(raw).body
    assert isinstance(body, kind)
    return body
