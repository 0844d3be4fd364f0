"""What a clipped fit asks of a silo: looked over before a row is, and answered in whole numbers."""

from fractions import Fraction

from fedpower.errors import ProtocolError
from fedpower.privacy.budget import MOMENT
from fedpower.privacy.clipped import MEAN, STEP, product_moved
from fedpower.privacy.shares import SumNoise, sum_noise
from fedpower.protocol.messages import AskNoisedSum, AskSum
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.releases import Moment
from fedpower.protocol.secure_releases import Summand
from fedpower.protocol.study import Study
from fedpower.sums.clipped_product import CLIP_SIDE, SIDE, SLANT, ClippedQuestion, clipped_sums, mean_sums
from fedpower.sums.local import LocalMoment


def width_of(study: Study, label: str) -> int:
    """Return how many columns the basis of a clipped product has, by the study's terms."""
    size = next((size for name, size, _ in study.sums if name == label), 0)
    if not label.startswith(f"{STEP} ") or size < 2:
        raise ProtocolError(
            "a clipped product must be one of those that the study lists, got another; ask for them in "
            "the study's order"
        )
    return (size - 1) // study.n_features


def checked_question(study: Study, label: str, public: bytes) -> ClippedQuestion:
    """Return the clipped product that a coordinator asks for; refuse what is none of this study."""
    return ClippedQuestion.from_bytes(
        public, n_features=study.n_features, width=width_of(study, label), center=study.center
    )


def moved_by_a_row(study: Study, label: str, public: bytes) -> tuple[Fraction, int]:
    """Return how far a row moves a sum, and the most that it adds to a number of it."""
    if label == MEAN:
        if public:
            raise ProtocolError("the mean must be asked for with nothing beside it, got more; ask so")
        return Fraction(2 * SIDE), SIDE
    return product_noise(checked_question(study, label, public))[0], SIDE * CLIP_SIDE


def product_noise(question: ClippedQuestion) -> tuple[Fraction, int]:
    """Return how far a row moves the whole numbers of a clipped product, and κ of the trace in them."""
    return product_moved(question.clip, question.basis.shape[1], side=SIDE, clip_side=CLIP_SIDE, slant=SLANT)


def plain_noise(study: Study, ask: AskNoisedSum, n_rows: int) -> SumNoise:
    """Return the noise of a sum that a silo of so many rows noises by itself."""
    budget = budget_of(study)
    assert budget is not None, "a clipped fit is private"
    sensitivity, per_row = moved_by_a_row(study, ask.label, ask.public)
    return sum_noise(
        budget.price_of_sum(ask.index).multiplier,
        sensitivity=sensitivity,
        per_row=per_row,
        sizes=(n_rows,),
        colluders=0,
    )


class ClippedSums:
    """A silo's part of the sums of a clipped fit."""

    def __init__(self, moment: LocalMoment, study: Study) -> None:
        self._moment = moment
        self._study = study

    def summand(self, label: str, public: bytes) -> Summand:
        """Return the whole numbers of the mean, or of a clipped product."""
        sensitivity, per_row = moved_by_a_row(self._study, label, public)
        if label == MEAN:
            integers = mean_sums(self._moment)
        else:
            question = checked_question(self._study, label, public)
            integers = clipped_sums(self._moment, question, kappa=product_noise(question)[1])
        return Summand(integers=integers, sensitivity=sensitivity, per_row=per_row)

    def moment(self, public: bytes) -> Moment:
        """Return the rows whose moment a warm start sums."""
        if public:
            raise ProtocolError("the moment must be asked for with nothing beside it, got more; ask so")
        return self._moment


def is_next(study: Study, ask: AskNoisedSum | AskSum) -> bool:
    """Return whether a question names a sum of the study by its place and label, and not the moment's."""
    sums = study.sums
    return (
        type(ask.index) is int
        and 0 <= ask.index < len(sums)
        and sums[ask.index].label == ask.label != MOMENT
        and isinstance(ask.public, bytes)
    )
