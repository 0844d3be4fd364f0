"""How a study's (ε, δ) at one silo is divided among its releases."""

import math
from dataclasses import dataclass

from fedpower.errors import InputError
from fedpower.privacy.accounting import mu_of
from fedpower.privacy.calibration import NoiseMode, noise_std
from fedpower.privacy.lattice import lattice_for_std
from fedpower.privacy.noise import TV_PER_INTEGER
from fedpower.privacy.sensitivity import product_sensitivity, rounding_slack
from fedpower.privacy.summary import summary_sensitivity, summary_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The price list of a private study, the same for every silo and known to all.

    Attributes
    ----------
    mode
        What is noised.
    epsilon, delta
        What all releases of one silo may cost together.
    n_features, iteration_rank
        d and r.
    n_steps
        T, the noised steps; plays no part in ``moment`` mode.
    center
        Whether the mean row is released: in the same release in ``moment`` mode, as one release more
        in the others.
    """

    mode: NoiseMode
    epsilon: float
    delta: float
    n_features: int
    iteration_rank: int
    n_steps: int
    center: bool

    @property
    def n_releases(self) -> int:
        """How many Gaussian releases share the budget."""
        return 1 if self.mode == "moment" else self.n_steps + int(self.center)

    @property
    def with_trace(self) -> bool:
        """Whether tr A leaves with each product.

        It is free beside a product of two columns or more, whose sensitivity √2/s covers both
        (`summary_sensitivity` with c = 0); beside one column, whose own is 1/s, it would not be.
        """
        return self.mode == "moment" or self.iteration_rank > 1

    @property
    def size(self) -> int:
        """The most numbers in one release."""
        if self.mode == "moment":
            return summary_size(self.n_features, with_mean=self.center)
        return self.n_features * self.iteration_rank + int(self.with_trace)

    @property
    def slack_delta(self) -> float:
        """The part of δ that pays for the sampler's distance from the ideal, for one release."""
        if self.epsilon > 60:
            raise InputError(
                f"epsilon must be at most 60, or inf for no privacy, got {self.epsilon}; "
                "a larger one promises nothing"
            )
        return (1.0 + math.exp(self.epsilon)) * self.size * TV_PER_INTEGER

    @property
    def mu(self) -> float:
        """The Gaussian-DP parameter of one release; all of them compose to (ε, δ) exactly."""
        total = mu_of(self.epsilon, self.delta - self.n_releases * self.slack_delta)
        return total / math.sqrt(self.n_releases)

    @property
    def multiplier(self) -> float:
        """Noise standard deviation over sensitivity, for one release."""
        return 1.0 / self.mu

    def sensitivity(self, n_rows: int, center_norm: float = 0.0) -> float:
        """Return the sensitivity of a silo's release, rounding of float64 sums included.

        About a public centre of norm c rows have norm at most 1 + c, so a product's sensitivity grows
        by (1 + c)²; the summary of ``moment`` mode is taken about the origin.
        """
        slack = rounding_slack(n_rows, self.n_features, iteration_rank=self.iteration_rank)
        if self.mode == "moment":
            return summary_sensitivity(n_rows, with_mean=self.center) + slack
        return (product_sensitivity(n_rows, self.iteration_rank) + slack) * (1.0 + center_norm) ** 2

    def std(self, n_rows: int, center_norm: float = 0.0) -> float:
        """Return the noise's standard deviation at a silo (lattice rounding, ~1e-9, aside)."""
        if self.mode == "paper":
            printed = noise_std(
                "paper",
                epsilon=self.epsilon,
                delta=self.delta,
                n_rows=n_rows,
                n_steps=self.n_steps,
                iteration_rank=self.iteration_rank,
            )
            return printed * (1.0 + center_norm) ** 2
        return self.sensitivity(n_rows, center_norm) * self.multiplier

    def product_mu(self, n_rows: int) -> float:
        """Return the Gaussian-DP parameter of one noised product.

        In ``paper`` it is what the printed noise really costs, which is less than the theorem promises.
        """
        if self.mode != "paper":
            return self.mu
        lattice = lattice_for_std(
            self.std(n_rows), sensitivity=self.sensitivity(n_rows), n_coordinates=self.size
        )
        return lattice.sensitivity / lattice.std

    def spectral_edge(self, n_rows: int) -> float:
        """Return τ√(2d): how negative an eigenvalue the noise of a noised moment can make.

        The largest eigenvalue of symmetric noise with off-diagonal variance τ²/2 tends to τ√(2d)
        (semicircle law).
        """
        return self.std(n_rows) * math.sqrt(2.0 * self.n_features)
