"""What is known beforehand of the noise that a verdict must stand above."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLaw:
    """What is known of the noise of a pooled release.

    Attributes
    ----------
    once
        Whether the moment itself was noised, once; else every product is, each with noise of its own.
    std
        σ: of the diagonal of a noised moment (√2 times that off it), or of each entry of a product.
    mean_std
        Of each entry of the mean row that was released by itself; 0 where none was.
    """

    once: bool
    std: float
    mean_std: float = 0.0
