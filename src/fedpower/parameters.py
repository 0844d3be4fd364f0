"""The parameters of a fit, each stated once: default, what it may be, option, place in a study file."""

# ruff: noqa: RUF009 - every field describes itself

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np

from fedpower.errors import InputError, Sentence

Group = Literal["main", "rows", "privacy", "solver", "paper", "rounds", "running"]
"""Under which heading an option is listed; those that most people need come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a value must be, whatever the data."""

    must: str
    advice: str
    holds: Callable[[Any], bool]
    kinds: tuple[type, ...]
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: object) -> None:
        """Refuse a value that is not allowed, in one sentence."""
        if not self.holds(value):
            raise InputError.about(name, must=self.must, got=repr(value), advice=self.advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    """What is known of a parameter beside its name, type and default."""

    help: str
    rule: Rule | None = None
    option: str | None
    group: Group
    section: str | None
    paper_only: bool = False
    newer: bool = False


def _one_of(*choices: str) -> Rule:
    listed = ", ".join(repr(choice) for choice in choices)
    return Rule(
        must=f"be one of {listed}",
        advice="choose one",
        holds=lambda value: isinstance(value, str) and value in choices,
        kinds=(str,),
        choices=choices,
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


_WHOLE = Rule(
    must="be a whole number of at least 1",
    advice="give one",
    holds=lambda value: _is_whole(value) and value >= 1,
    kinds=(int,),
)
_WHOLE_OR_NONE = Rule(
    must=_WHOLE.must,
    advice=_WHOLE.advice,
    holds=lambda value: value is None or _WHOLE.holds(value),
    kinds=(int,),
)
_FLAG = Rule(
    must="be True or False",
    advice="give one of them",
    holds=lambda value: value is None or isinstance(value, bool | np.bool_),
    kinds=(bool,),
)
_CHOICE = Rule(
    must=_FLAG.must,
    advice=_FLAG.advice,
    holds=lambda value: isinstance(value, bool | np.bool_),
    kinds=(bool,),
)
_EPSILON = Rule(
    must="be above 0",
    advice="1 is usual, and {unbounded} means no privacy",
    holds=lambda value: _is_number(value) and value > 0,
    kinds=(int, float),
)
_DELTA = Rule(
    must="lie between 0 and 1",
    advice="1e-6 is usual",
    holds=lambda value: value is None or (_is_number(value) and 0 < value < 1),
    kinds=(int, float),
)
_ENERGY = Rule(
    must="lie between 0 and 1",
    advice="give a guess, or what an earlier result shows",
    holds=lambda value: value is None or (_is_number(value) and 0 < value < 1),
    kinds=(int, float),
)
_SCORES = Rule(
    must="be above 0",
    advice="a tenth of epsilon is usual",
    holds=lambda value: value is None or (_is_number(value) and value > 0),
    kinds=(int, float),
)
_TOL = Rule(
    must="lie in [0, 1)",
    advice="0 never stops early",
    holds=lambda value: _is_number(value) and 0 <= value < 1,
    kinds=(int, float),
)
_DEADLINE = Rule(
    must="be a positive number of seconds",
    advice="{never}",
    holds=lambda value: value is None or (_is_number(value) and value > 0),
    kinds=(int, float),
)
_JOBS = Rule(
    must="be a whole number other than 0",
    advice="-1 takes all cores",
    holds=lambda value: value is None or (_is_whole(value) and value != 0),
    kinds=(int,),
)
_UNIT = Rule(
    must="be the name of the column that says whose each row is",
    advice="give e.g. 'patient_id'",
    holds=lambda value: value is None or (isinstance(value, str) and value != ""),
    kinds=(str,),
)
_NETWORK = Rule(
    must="be 'edge' or 'row'",
    advice="say which of them is protected",
    holds=lambda value: value is None or value in ("edge", "row"),
    kinds=(str,),
    choices=("edge", "row"),
)
EDGE_WEIGHT = Rule(
    must="be a number from 1e-100 to 1e100",  # whose squares, times noise, are numbers too
    advice="give the public maximum of an edge's weight",
    holds=lambda value: value is None or (_is_number(value) and 1e-100 <= value <= 1e100),
    kinds=(int, float),
)
_DEVICE = Rule(
    must="be the name of a PyTorch device",
    advice="give e.g. 'cuda', or None for the CPU",
    holds=lambda value: value is None or isinstance(value, str),
    kinds=(str,),
)


def _parameter(default: Any, **spec: Any) -> Any:
    return field(default=default, metadata={"spec": _Spec(**spec)})


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters of a fit as values; `FedPCA` documents what each of them means."""

    n_components: int | float | str | None = _parameter(
        None,
        help="Number of components, a fraction of variance, or auto: as many as are determined.",
        option="-k",
        group="main",
        section="components",
    )
    epsilon: float = _parameter(
        1.0,
        help="Each silo's budget for this fit; 1 is usual, inf is exact and NOT private.",
        rule=_EPSILON,
        option="--epsilon",
        group="main",
        section="privacy",
    )
    delta: float | None = _parameter(
        None,
        help="The δ of (ε, δ); by default from the number of rows.",
        rule=_DELTA,
        option="--delta",
        group="privacy",
        section="privacy",
    )
    noise: Literal["auto", "moment", "clipped", "step", "paper"] = _parameter(
        "auto",
        help="What is noised; auto takes what is predicted to be most accurate.",
        rule=_one_of("auto", "moment", "clipped", "step", "paper"),
        option="--noise",
        group="privacy",
        section="privacy",
    )
    energy: float | None = _parameter(
        None,
        help="Guess of the share of all variance in the k components; tells auto when to clip.",
        rule=_ENERGY,
        option="--energy",
        group="privacy",
        section="privacy",
        newer=True,
    )
    solver: Literal["auto", "moment", "krylov", "fedpower"] = _parameter(
        "auto",
        help="How the eigenspace is found; auto says why it chose.",
        rule=_one_of("auto", "fedpower", "krylov", "moment"),
        option="--solver",
        group="solver",
        section="solver",
    )
    aggregation: Literal["plain", "secure"] = _parameter(
        "plain",
        help="Whether the coordinator sees each silo's moment, or their sum alone with shared noise.",
        rule=_one_of("plain", "secure"),
        option="--aggregation",
        group="privacy",
        section="privacy",
    )
    colluders: int = _parameter(
        1,
        help="Silos of a secure sum that may collude with the coordinator; 1 by default.",
        rule=_WHOLE,
        option="--colluders",
        group="privacy",
        section="privacy",
    )
    weights: Literal["rows", "noise"] = _parameter(
        "rows",
        help="Weigh silos by their rows (default), or such that the noise is least.",
        rule=_one_of("rows", "noise"),
        option="--weights",
        group="privacy",
        section="privacy",
        newer=True,
    )
    row_norm: float | None = _parameter(
        None,
        help="Public bound on a row's norm; longer ones are clipped.",
        option="--row-norm",
        group="main",
        section="rows",
    )
    normalize: bool = _parameter(
        False, help="Scale every row to norm 1.", option="--normalize", group="rows", section="rows"
    )
    center: Any = _parameter(
        True,
        help="Centre on the pooled mean (default), also after --center-file.",
        option="--center/--no-center",
        group="rows",
        section="rows",
    )
    offset: Any = _parameter(
        None,
        help="Public numbers to take off the columns first.",
        option=None,
        group="rows",
        section="columns",
        newer=True,
    )
    scale: Any = _parameter(
        None, help="Public divisors of the columns.", option=None, group="rows", section="columns"
    )
    codebook: Any = _parameter(
        None,
        help="Code book from `fedpower prepare`: offsets, scales, ranges and bound.",
        option=None,
        group="main",
        section=None,
    )
    ranges: Any = _parameter(
        None,
        help="What cells of columns lie between.",
        option=None,
        group="main",
        section="columns",
        newer=True,
    )
    standardize: bool = _parameter(
        True,
        help="Correlations (default), or covariances in the columns' own units.",
        rule=_CHOICE,
        option="--standardize/--no-standardize",
        group="rows",
        section="rows",
    )
    unit: str | None = _parameter(
        None,
        help="Column that says whose each row is: a person is protected with all rows of a silo.",
        rule=_UNIT,
        option="--unit",
        group="main",
        section="rows",
        newer=True,
    )
    rows_per_unit: int = _parameter(
        1,
        help="Count so many rows of a person in full, at as many times the noise.",
        rule=_WHOLE,
        option="--rows-per-unit",
        group="rows",
        section="rows",
        newer=True,
    )
    network: Literal["edge", "row"] | None = _parameter(
        None,
        help="Silos hold networks on these nodes; an edge is protected, or a row of the adjacency.",
        rule=_NETWORK,
        option=None,
        group="main",
        section="rows",
        newer=True,
    )
    edge_weight: float | None = _parameter(
        None,
        help="Public maximum at which weights of edges are capped; 0 and 1 alone without.",
        rule=EDGE_WEIGHT,
        option=None,
        group="main",
        section="rows",
        newer=True,
    )
    keep_moment: bool = _parameter(
        False,
        help="Keep the pooled moment in the result, for `fedpower derive`.",
        rule=_FLAG,
        option="--keep-moment",
        group="solver",
        section="components",
        newer=True,
    )
    scores_epsilon: float | None = _parameter(
        None,
        help="Part of epsilon for a histogram of scores on two components in the report.",
        rule=_SCORES,
        option="--scores-epsilon",
        group="privacy",
        section="privacy",
        newer=True,
    )
    one_shot_start: bool | None = _parameter(
        None,
        help="Whether krylov opens with local steps at the silos.",
        rule=_FLAG,
        option="--one-shot-start/--no-one-shot-start",
        group="solver",
        section="solver",
    )
    iteration_rank: int | None = _parameter(
        None,
        help="Columns of the iterated basis; k + 10 by default.",
        rule=_WHOLE_OR_NONE,
        option="--iteration-rank",
        group="solver",
        section="components",
    )
    schedule: Any = _parameter(
        "every",
        help="At which steps a round happens, e.g. 2,4,5.",
        option="--schedule",
        group="paper",
        section="solver",
        paper_only=True,
    )
    local_steps: int = _parameter(
        1,
        help="Power steps between two rounds.",
        rule=_WHOLE,
        option="--local-steps",
        group="paper",
        section="solver",
        paper_only=True,
    )
    drift_correction: bool = _parameter(
        False,
        help="Correct local steps for the silos' differences.",
        rule=_FLAG,
        option="--drift-correction",
        group="paper",
        section="solver",
        paper_only=True,
    )
    n_steps: int | None = _parameter(
        None,
        help="Power steps in all; by default until --tol.",
        rule=_WHOLE_OR_NONE,
        option="--n-steps",
        group="paper",
        section="solver",
        paper_only=True,
    )
    tol: float = _parameter(
        1e-9,
        help="Stop when a round moves the subspace by sin θ ≤ this.",
        rule=_TOL,
        option="--tol",
        group="solver",
        section="solver",
    )
    max_rounds: int = _parameter(
        500,
        help="Stop after so many rounds.",
        rule=_WHOLE,
        option="--max-rounds",
        group="solver",
        section="solver",
    )
    alignment: Literal["procrustes", "sign", "identity"] = _parameter(
        "procrustes",
        help="How silos' bases are rotated before they are averaged.",
        rule=_one_of("procrustes", "sign", "identity"),
        option="--alignment",
        group="paper",
        section="solver",
        paper_only=True,
    )
    reference: Literal["first", "active", "broadcast"] = _parameter(
        "first",
        help="To whose basis they are rotated.",
        rule=_one_of("first", "active", "broadcast"),
        option="--reference",
        group="paper",
        section="solver",
        paper_only=True,
    )
    n_participants: int | None = _parameter(
        None,
        help="Silos per round; all by default.",
        rule=_WHOLE_OR_NONE,
        option="--participants",
        group="paper",
        section="rounds",
        paper_only=True,
    )
    participation: Literal["sampled", "first"] = _parameter(
        "sampled",
        help="Whether they are drawn, or are the first to answer.",
        rule=_one_of("sampled", "first"),
        option="--participation",
        group="paper",
        section="rounds",
    )
    min_silos: int | None = _parameter(
        None,
        help="Fewest silos a round may go on with.",
        rule=_WHOLE_OR_NONE,
        option="--min-silos",
        group="rounds",
        section="rounds",
    )
    deadline: float | None = _parameter(
        None,
        help="Seconds after which a round goes on without the rest.",
        rule=_DEADLINE,
        option="--deadline",
        group="rounds",
        section="rounds",
    )
    extra_columns: Literal["refuse", "drop"] = _parameter(
        "refuse",
        help="What to do with columns that not every silo has.",
        rule=_one_of("refuse", "drop"),
        option="--extra",
        group="rows",
        section=None,
    )
    random_state: Any = _parameter(
        None,
        help="Start basis and sampling; never noise.",
        option="--seed",
        group="running",
        section="solver",
    )
    n_jobs: int | None = _parameter(
        None, help="Silos that work at once.", rule=_JOBS, option="--jobs", group="running", section=None
    )
    device: str | None = _parameter(
        None,
        help="PyTorch device for the silos' arithmetic, e.g. cuda.",
        rule=_DEVICE,
        option="--device",
        group="running",
        section=None,
    )

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return the parameters of an estimator, checked."""
        made = cls(**{name: getattr(model, name) for name in SPECS})
        made.check()
        return made

    def check(self) -> None:
        """Refuse, in one sentence, a value that is not allowed whatever the data."""
        for name, spec in SPECS.items():
            if spec.rule is not None:
                spec.rule.check(name, getattr(self, name))
        check_sums_are_noised(self.aggregation, self.epsilon)

    @property
    def is_private(self) -> bool:
        """Whether anything is promised about the rows."""
        return math.isfinite(self.epsilon)

    @property
    def centers(self) -> bool:
        """Whether rows are centred on the pooled mean, as they are after a public centre too."""
        if self.network is not None:
            return False
        return not isinstance(self.center, bool | np.bool_) or bool(self.center)

    @property
    def standardizes(self) -> bool:
        """Whether columns are brought to variance 1."""
        return bool(self.standardize) and self.network is None and not self.normalize

    @property
    def public_offset(self) -> Any:
        """What is taken off the columns before anything else; None for nothing."""
        return self.center if not isinstance(self.center, bool | np.bool_) else self.offset

    @property
    def paper_settings(self) -> tuple[str, ...]:
        """The names of parameters that were given and that only the paper's method has."""
        return tuple(
            name
            for name, spec in SPECS.items()
            if spec.paper_only and (np.ndim(getattr(self, name)) or getattr(self, name) != DEFAULTS[name])
        )


def check_sums_are_noised(aggregation: str, epsilon: float) -> None:
    """Refuse secure sums without noise: a coordinator can make them tell what one silo holds."""
    if aggregation == "secure" and math.isinf(epsilon):
        raise InputError(
            Sentence(
                "{aggregation:secure} must have a finite epsilon, got {epsilon:inf}; exact sums under "
                "masks can be made to reveal one silo, so use {aggregation:plain} or a finite epsilon"
            )
        )


def _spec(each: "Field[Any]") -> _Spec:
    found = each.metadata["spec"]
    assert isinstance(found, _Spec)
    return found


SPECS: Mapping[str, _Spec] = {each.name: _spec(each) for each in fields(Parameters)}
"""By parameter, in the order of `FedPCA`'s signature."""

DEFAULTS: Mapping[str, Any] = {each.name: each.default for each in fields(Parameters)}
