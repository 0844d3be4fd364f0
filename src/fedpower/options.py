"""The options of a fit: small frozen values whose fields carry default, bounds and help in one place.

`FedPCA`, the command line and study files all build `Options` from them. On the command line and in files the
values are flat: ``solver=Krylov(tol=1e-6)`` is ``--solver krylov --tol 1e-6``; `Options.flat` and `from_flat`
go from one to the other.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, dataclass_transform, get_args

import numpy as np

from fedpower.exceptions import InputError, require
from fedpower.rows.networks import NetworkUnit, check_edge_weight
from fedpower.rules.codebook import EXACT, CodeBook
from fedpower.rules.rules import TableRules

Group = Literal["main", "rows", "privacy", "solver", "paper", "rounds", "running"]
"""The heading under which help lists an option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An option: help, bounds, place on the command line and in files."""

    help: str
    must: str = ""
    holds: Callable[[Any], bool] | None = None
    kind: type | None = None
    choices: Any = ()  # words, or what they stand for by word
    group: Group = "main"
    section: str | None = None
    option: str | None = ""
    default: Any = None
    metavar: str | None = None
    parse: Callable[[Any], Any] | None = None
    multiple: bool = False

    def check(self, name: str, value: Any) -> None:
        """Refuse a value outside the bounds; a default of None is always allowed."""
        if value is None and self.default is None:
            return
        if self.choices:
            kinds = tuple(self.choices.values()) if isinstance(self.choices, Mapping) else ()
            known = (isinstance(value, str) and value in self.choices) or type(value) in kinds
            require(known, name, f"one of {', '.join(map(repr, self.choices))}", value)
        elif self.holds is not None:
            of_kind = self.kind is None or isinstance(value, _OF_KIND[self.kind])
            is_flag = isinstance(value, bool | np.bool_) and self.kind is not bool
            require(of_kind and not is_flag and self.holds(value), name, self.must, value)


_OF_KIND: dict[type, Any] = {int: Integral, float: Real, bool: bool | np.bool_, str: str}
_BOUNDS: dict[str, tuple[str, Callable[[Any], bool], type]] = {
    "count": ("a whole number of at least 1", lambda value: value >= 1, int),
    "size": ("a whole number of at least 0", lambda value: value >= 0, int),
    "amount": ("0 or more", lambda value: value >= 0, float),
    "part": ("above 0 and at most 1", lambda value: 0 < value <= 1, float),
    "flag": ("True or False", lambda value: True, bool),
    "positive": ("a number above 0", lambda value: value > 0, float),
    "share": ("a number between 0 and 1", lambda value: 0 < value < 1, float),
    "tol": ("a number of at least 0 and below 1", lambda value: 0 <= value < 1, float),
    "jobs": ("a whole number other than 0", lambda value: value != 0, int),
    "text": ("text", lambda value: value != "", str),
}


_SECTIONS = {"rows": "rows", "privacy": "privacy", "solver": "solver", "paper": "solver", "rounds": "rounds"}
"""In which section of a file the options of a group are, unless they state another."""


def _declare(
    default: Any, help: str, bounds: str | Collection[str] | None = None, group: Group = "main", **more: Any
) -> Setting:
    """Return a setting: bounds are a kind of value, or words and perhaps what they stand for."""
    known: dict[str, Any] = {"section": _SECTIONS.get(group)}
    if isinstance(bounds, str):
        known |= zip(("must", "holds", "kind"), _BOUNDS[bounds], strict=True)
    elif bounds is not None:
        known |= {"choices": bounds, "kind": str}
    return Setting(help=help, default=default, group=group, **{**known, **more})


def setting(*declared: Any, **more: Any) -> Any:
    """Return a dataclass field: default, help, bounds (a kind of value, or words) and group."""
    made = _declare(*declared, **more)
    default = made.choices[made.default]() if isinstance(made.choices, Mapping) else made.default
    return field(default=default, metadata={"setting": made})


def documented(kind: Any, before: str = "Examples") -> None:
    """Write the help of a dataclass's settings into its documentation, before a section."""
    lines = ["    Parameters", "    ----------"] if _settings(kind) else []
    for item in fields(kind):
        if known := item.metadata.get("setting"):
            choices = f"{{{', '.join(map(repr, known.choices))}}}"
            name = choices if known.choices else getattr(item.type, "__name__", str(item.type))
            given = "" if item.default is MISSING else f", default={item.default!r}"
            lines += [f"    {item.name} : {name}{given}", f"        {known.help}"]
    lines += [""] if lines else []
    summary, _, rest = kind.__doc__.partition(f"\n    {before}\n")
    kind.__doc__ = "\n".join([summary, *lines, f"    {before}", rest])


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _Value:
    """A frozen value: its fields are checked when it is made, and its repr shows what is not a default."""

    name: ClassVar[str]

    def __init_subclass__(cls, *, kw_only: bool = True) -> None:
        documented(dataclass(frozen=True, kw_only=kw_only, repr=False)(cls))

    def __post_init__(self) -> None:
        for name, known in _settings(self).items():
            known.check(name, getattr(self, name))

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={_shortened(value)}" for name, value in self.given().items())
        return f"{type(self).__name__}({given})"

    def given(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        values = [(item, getattr(self, item.name)) for item in fields(self)]  # type: ignore[arg-type]
        return {item.name: value for item, value in values if not _is_default(value, item.default)}


def _is_default(value: Any, default: Any) -> bool:
    """Return whether a value is the default, which a list, a vector or a table never is."""
    return value is default or (isinstance(value, str | Real | _Value) and value == default)


def _settings(kind: Any) -> dict[str, Setting]:
    """Return the settings of a value, or of a class of values, by the names of their fields."""
    return {item.name: item.metadata["setting"] for item in fields(kind) if item.metadata}


_MOST_SHOWN = 6


def _shortened(value: Any) -> str:
    if isinstance(value, float) and math.isinf(value):
        return 'float("inf")'
    if isinstance(value, list | tuple | np.ndarray) and len(value) > _MOST_SHOWN:
        return "[...]"  # run.json has them
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)


# --- solvers ---------------------------------------------------------------------------------------


class Upload(_Value):
    """Solver: each silo uploads its covariance once, in one round.

    Examples
    --------
    >>> from fedpower import FedPCA, Upload
    >>> FedPCA(4, solver=Upload(iteration_rank=8)).solver
    Upload(iteration_rank=8)
    """

    name: ClassVar[str] = "upload"
    noises: ClassVar[tuple[str, ...]] = ("none", "covariance")  # what may be noised with it
    iteration_rank: int | None = setting(
        None, "Columns of the iterated basis; by default k + 10.", "count", "solver", section="components"
    )


class Iterative(Upload):
    """Settings of solvers that take several rounds."""

    noises: ClassVar[tuple[str, ...]] = ("none", "covariance", "step", "paper")

    n_steps: int | None = setting(None, "Total power steps; by default until --tol.", "count", "paper")
    tol: float = setting(1e-9, "Stop when a round changes the subspace by sin θ ≤ this.", "tol", "solver")
    max_rounds: int = setting(500, "Stop after this many rounds.", "count", "solver")
    n_participants: int | None = setting(
        None, "Silos per round; all by default.", "count", "paper", section="rounds", option="--participants"
    )
    participation: Literal["sampled", "first"] = setting(
        "sampled",
        "Draw participants, or take the first to answer.",
        ("sampled", "first"),
        "paper",
        section="rounds",
    )


class Krylov(Iterative):
    """Solver: a block Krylov space in a few rounds, for wide data.

    Each round carries n_features × iteration_rank numbers.

    Examples
    --------
    >>> from fedpower import FedPCA, Krylov
    >>> FedPCA(4, solver=Krylov(tol=1e-6)).solver
    Krylov(tol=1e-06)
    """

    name: ClassVar[str] = "krylov"
    noises: ClassVar[tuple[str, ...]] = ("none", "covariance", "step")
    lookahead: bool | None = setting(
        None, "krylov: take a second, local step in each round.", "flag", "solver"
    )


class Auto(Krylov):
    """One upload or a Krylov space, whichever is cheaper, with the settings of `Krylov`.

    Examples
    --------
    >>> from fedpower import Auto
    >>> Auto(max_rounds=50)
    Auto(max_rounds=50)
    """

    name: ClassVar[str] = "auto"


def _is_schedule(value: Any) -> bool:
    if isinstance(value, str):
        return value in ("every", "decaying", "halving")
    is_list = isinstance(value, Collection) and len(value) > 0
    return is_list and all(isinstance(step, Integral) and int(step) >= 1 for step in value)


class PowerMethod(Iterative):
    """Solver: the paper's federated power method, with local steps.

    Examples
    --------
    >>> from fedpower import FedPCA, PowerMethod
    >>> FedPCA(4, solver=PowerMethod(schedule="halving", local_steps=8)).solver
    PowerMethod(schedule='halving', local_steps=8)
    """

    name: ClassVar[str] = "fedpower"
    schedule: Any = setting(
        "every",
        "Steps with a round, e.g. 2,4,5.",
        group="paper",
        must="'every', 'decaying', 'halving' or whole steps from 1, such as [2, 4, 5]",
        holds=_is_schedule,
    )
    local_steps: int = setting(1, "Power steps between two rounds.", "count", "paper")
    drift_correction: bool = setting(False, "Correct local steps for silo differences.", "flag", "paper")
    alignment: str = setting(
        "procrustes", "How bases are rotated before averaging.", ("procrustes", "sign", "identity"), "paper"
    )
    reference: str = setting("first", "Basis to rotate to.", ("first", "active", "broadcast"), "paper")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drift_correction and self.n_participants is not None:
            raise InputError("drift-corrected steps must use every silo; leave n_participants out")


Solver = Upload | Krylov | PowerMethod


# --- aggregation -----------------------------------------------------------------------------------


class _Rounds(_Value):
    min_silos: int | None = setting(None, "Fewest silos with which a round continues.", "count", "rounds")
    deadline: float | None = setting(
        None, "Seconds after which a round continues without missing silos.", "positive", "rounds"
    )


class Plain(_Rounds):
    """Aggregation: the coordinator sees each silo's noised answer.

    Examples
    --------
    >>> from fedpower import FedPCA, Plain
    >>> FedPCA(4, aggregation=Plain(min_silos=3)).aggregation
    Plain(min_silos=3)
    """

    name: ClassVar[str] = "plain"
    colluders: ClassVar[int] = 1
    weights: Literal["rows", "noise"] = setting(
        "rows", "Weigh silos by rows (default), or for the least noise.", ("rows", "noise"), "privacy"
    )


class Secure(_Rounds):
    """Aggregation: the coordinator sees only the sum of the silos' answers.

    The silos share one portion of noise, so the result is more accurate than with `Plain`. Needs the extra
    ``secure`` (``pip install 'fedpower[secure]'``) and a finite ``epsilon``.

    Examples
    --------
    >>> from fedpower import FedPCA, Secure
    >>> FedPCA(4, aggregation=Secure(colluders=2)).aggregation
    Secure(colluders=2)
    """

    name: ClassVar[str] = "secure"
    weights: ClassVar[Literal["rows", "noise"]] = "rows"
    colluders: int = setting(
        1, "Silos that may collude with the coordinator; 1 by default.", "count", "privacy"
    )


Aggregation = Plain | Secure


# --- the unit of privacy ---------------------------------------------------------------------------


class Person(_Value, kw_only=False):
    """Unit of privacy: a person with all of their rows at a silo.

    Examples
    --------
    >>> from fedpower import FedPCA, Person
    >>> FedPCA(4, unit=Person("patient_id", rows=3)).unit
    Person(column='patient_id', rows=3)
    """

    column: str | None = setting(
        None,
        "Protect persons with all their rows: the column of their ids.",
        "text",
        section="rows",
        must="the name of the column that identifies a row's person",
    )
    rows: int = setting(1, "Rows of a person that count in full; noise grows with them.", "count", "rows")


class Edge(_Value, kw_only=False):
    """Unit of privacy: one edge of one silo's network. It does not protect a node with all its edges.

    ``nodes`` are the names of all nodes. They are public, and edge lists need them.

    Examples
    --------
    >>> from fedpower import Edge, FedCovariance
    >>> FedCovariance(unit=Edge(max_weight=5.0)).unit
    Edge(max_weight=5.0)
    """

    name: ClassVar[NetworkUnit] = "edge"
    max_weight: float | None = setting(
        None, "Public maximum weight of an edge; without it weights are 0 or 1.",
        section="rows", kind=float,
    )  # fmt: skip
    nodes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_edge_weight(self.max_weight)


class Node(_Value, kw_only=False):
    """Unit of privacy: one row of a silo's adjacency matrix. It does not protect a node with all its edges.

    Rows are scaled to norm 1, unless a code book has another bound. ``nodes`` are the names of all nodes.
    They are public, and edge lists need them.

    Examples
    --------
    >>> from fedpower import FedCovariance, Node
    >>> FedCovariance(unit=Node()).unit
    Node()
    """

    name: ClassVar[NetworkUnit] = "row"
    max_weight: ClassVar[None] = None
    nodes: Sequence[str] | None = None


Unit = Person | Edge | Node


# --- noise -----------------------------------------------------------------------------------------

NoiseKind = Literal["auto", "covariance", "clipped", "step", "paper"]


class Noise(_Value, kw_only=False):
    """Where noise is added, and what else the budget pays for.

    Examples
    --------
    >>> from fedpower import FedPCA, Noise
    >>> FedPCA(4, noise=Noise("covariance", scores_epsilon=0.1)).noise
    Noise(kind='covariance', scores_epsilon=0.1)
    """

    kind: NoiseKind = setting(
        "auto", "What gets noise; auto takes the most accurate.", get_args(NoiseKind), "privacy"
    )
    energy: float | None = setting(
        None, "Guess of the components' share of the variance, for clipping.", "share", "privacy"
    )
    scores_epsilon: float | None = setting(
        None, "Part of epsilon for a private score plot.", "positive", "privacy"
    )


# --- all of them -----------------------------------------------------------------------------------

SOLVERS: dict[str, type[Solver]] = {kind.name: kind for kind in (Auto, PowerMethod, Krylov, Upload)}
AGGREGATIONS: dict[str, type[Aggregation]] = {kind.name: kind for kind in (Plain, Secure)}


class Options(_Value):
    """The options of a fit, checked; `FedPCA` documents each."""

    n_components: Any = setting(
        None,
        "Number of components, a fraction of variance, or auto.",
        section="components",
        option="-k --components",
    )
    epsilon: float = setting(
        1.0, "Budget of each silo; 1 is usual, inf is exact and NOT private.", "positive", section="privacy"
    )
    delta: float | None = setting(None, "δ of (ε, δ); by default from row counts.", "share", "privacy")
    center: bool = setting(
        True, "Centre on the pooled mean (default), also after --center-file.", "flag", "rows"
    )
    standardize: bool = setting(
        True, "Use correlations (default), or covariances in the columns' own units.", "flag", "rows"
    )
    whiten: bool = setting(False, "Divide scores by their standard deviations.", "flag", option=None)
    ranges: Any = setting(None, "Smallest and largest value of each column.", section="columns", option=None)
    codebook: CodeBook | None = setting(None, "Code book with rules and numbers of columns.", option=None)
    unit: Any = None
    noise: Any = Noise()
    aggregation: Any = setting(
        "plain", "Sum of the silos: plain, or secure with less noise.", AGGREGATIONS, "privacy"
    )
    solver: Any = setting("auto", "How components are computed; auto chooses.", SOLVERS, "solver")
    device: str | None = setting(None, "PyTorch device of the silos, e.g. cuda.", "text", "running")
    random_state: Any = setting(
        None,
        "Seed of start and sampling; never of noise.",
        None,
        "running",
        section="solver",
        option="--seed",
    )
    n_jobs: int | None = setting(None, "Silos that work in parallel.", "jobs", "running", option="--jobs")

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds: dict[str, Any] = {"unit": Person, "noise": Noise}
        for name in ("unit", "noise", "aggregation", "solver"):
            word = getattr(self, name)
            if isinstance(word, str):
                FLAT[name].check(name, word)
                made = kinds[name](word) if name in kinds else FLAT[name].choices[word]()
                object.__setattr__(self, name, made)
        require(isinstance(self.noise, Noise), "noise", "a word or Noise()", self.noise)
        must = "the name of the column that identifies a row's person, Person(), Edge() or Node()"
        require(isinstance(self.unit, Person | Edge | Node | None), "unit", must, self.unit)
        is_book = self.codebook is None or isinstance(self.codebook, CodeBook)
        require(is_book, "codebook", "a CodeBook or the path of one", type(self.codebook).__name__)
        if self.is_private and self.book is not None and EXACT in self.book.found:
            raise InputError("codebook must be public in a private fit, got one that an exact fit found")
        check_sums_are_noised(self.aggregation.name, self.epsilon)

    @property
    def is_private(self) -> bool:
        return math.isfinite(self.epsilon)

    @property
    def network(self) -> Edge | Node | None:
        """What is protected in networks; None where silos hold rows."""
        return self.unit if isinstance(self.unit, Edge | Node) else None

    @property
    def person(self) -> Person:
        """Who is protected; without a column, each row counts as one person."""
        return self.unit if isinstance(self.unit, Person) else Person()

    @property
    def public(self) -> CodeBook:
        """The given public numbers about columns; an empty code book without any.

        Rows of networks without a bound are scaled to norm 1, as in the paper.
        """
        given = CodeBook() if self.codebook is None or not self.codebook.is_draft else self.codebook
        if isinstance(self.unit, Node) and self.book is None and given.row_norm is None:
            return replace(given, normalize=True)
        return given

    @property
    def book(self) -> CodeBook | None:
        """The code book, if preparation found its numbers or they follow from its rules."""
        return None if self.codebook is None or self.codebook.is_draft else self.codebook

    @property
    def centers(self) -> bool:
        """Whether rows are centred on the pooled mean."""
        return bool(self.center) and self.network is None

    @property
    def standardizes(self) -> bool:
        """Whether columns are brought to variance 1."""
        return bool(self.standardize) and self.network is None and not self.public.normalize

    @property
    def prepares(self) -> bool:
        """Whether a fit finds offset, scale and bound privately, because none of them is given."""
        return (
            self.is_private
            and self.network is None
            and self.book is None
            and not self.public.has_public_numbers
            and self.noise.kind in ("auto", "covariance")
            and self.solver.name in ("auto", "upload")
            and not self.paper_settings
        )

    @property
    def takes_gaps(self) -> bool:
        """Whether missing numbers are allowed: an offset is found, or a code book has one."""
        return self.prepares or self.book is not None

    @property
    def agreed_ranges(self) -> Any:
        """The ranges that were given for their own sake; those of a code book's numbers were found."""
        return self.ranges if self.public.offset is None else None

    @property
    def rules(self) -> TableRules | None:
        """The rules of the silos' tables, with what stands for missing cells; None without any."""
        rules = None if self.codebook is None else self.codebook.table_rules
        return rules if rules is None or self.prepares else rules.filled({})

    @property
    def finds_offsets(self) -> bool:
        """Whether an exact fit counts missing cells for nothing, as one that prepares does."""
        return (
            not self.is_private
            and self.codebook is not None
            and self.codebook.rules is not None
            and not (self.book or self.public.has_public_numbers or self.ranges or self.person.column)
            and self.centers
            and self.aggregation.name == "plain"
            and self.aggregation.weights == "rows"
            and self.solver.name in ("auto", "upload")
            and not self.paper_settings
        )

    @property
    def rules_of_fit(self) -> TableRules | None:
        """The rules by which a fit opens tables."""
        if self.codebook is not None and self.codebook.table_rules is not None and self.finds_offsets:
            return self.codebook.table_rules.unfilled
        return self.rules

    @property
    def paper_settings(self) -> tuple[str, ...]:
        """The names of given options that only the paper's method has."""
        return _paper_settings(self.solver)

    def flat(self) -> dict[str, Any]:
        """Return every option by its name on the command line and in files."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        for part in (Person(), Edge(), self.unit or Person(), self.noise, self.aggregation, self.solver):
            values |= {_RENAMED.get(item.name, item.name): getattr(part, item.name) for item in fields(part)}
        names = {"aggregation": self.aggregation.name, "solver": self.solver.name}
        network = None if self.network is None else self.network.name
        public = {name: getattr(self.public, name) for name in _OF_CODE_BOOKS}
        return values | names | public | {"network": network}


_OF_CODE_BOOKS = {
    "row_norm": _declare(
        None, "Public bound on the norm of a row; longer rows are clipped.", kind=float, section="rows"
    ),
    "normalize": _declare(False, "Scale every row to norm 1.", "flag", "rows"),
    "offset": _declare(None, "Public numbers to subtract from columns.", section="columns", option=None),
    "scale": _declare(None, "Public divisors of columns.", section="columns", option=None),
}
"""Options that are fields of a code book."""

_RENAMED = {"kind": "noise", "column": "unit", "rows": "rows_per_unit", "max_weight": "edge_weight"}


def _flat_settings() -> Iterator[tuple[str, Setting]]:
    parts: dict[str, Iterable[Any]] = {"unit": (Person, Edge), "noise": (Noise,)}
    for item in fields(Options):
        known = item.metadata.get("setting")
        if known is not None:
            yield item.name, known
            if isinstance(known.choices, Mapping):
                parts[item.name] = known.choices.values()
        if item.name == "unit":
            help = "Silos hold networks: protect edges, or rows of the adjacency."
            yield "network", _declare(None, help, ("edge", "row"), section="rows")
        for part in parts.get(item.name, ()):
            yield from ((_RENAMED.get(name, name), inner) for name, inner in _settings(part).items())
        if item.name == "codebook":
            yield from _OF_CODE_BOOKS.items()


FLAT: dict[str, Setting] = dict(_flat_settings())
"""Every option of a fit by its name on the command line and in files."""


def register_solver(kind: type[Any]) -> None:
    """Add a solver to those that users can choose, with its settings."""
    SOLVERS[kind.name] = kind
    FLAT.update(_flat_settings())


def _paper_settings(solver: Any) -> tuple[str, ...]:
    only = {name for name, known in FLAT.items() if known.group == "paper"} - {"participation"}
    return tuple(name for name in solver.given() if name in only)


def converted(value: Any, kind: Any) -> Any:
    """Return a value of another kind with the settings that both have; refuse the paper's own."""
    if type(value) is kind:
        return value
    known = {each.name for each in fields(kind)}
    odd = [name for name in _paper_settings(value) if name not in known]
    require(not odd, next(iter(odd), ""), f"left out with {kind.name}", value.given())
    return kind(**{name: setting for name, setting in value.given().items() if name in known})


def option_name(name: str) -> str:
    """Return what the command line calls an option: ``row_norm`` is --row-norm."""
    known = FLAT[name].option if name in FLAT else None
    return (known or f"--{name.replace('_', '-')}").split()[0]


def from_flat(given: Mapping[str, Any]) -> Options:
    """Return the options of a fit from flat ones; those that are missing or None keep their defaults."""
    left = {name: value for name, value in given.items() if value is not None}
    # A form that shows all options gives defaults.
    left = {name: value for name, value in left.items() if not _is_default(value, FLAT[name].default)}
    numbers = {name: left.pop(name) for name in _OF_CODE_BOOKS if name in left}
    book = left.pop("codebook", None)
    if numbers and book is not None and not book.is_draft:
        first = next(iter(numbers))
        raise InputError(f"{first} must be left out, because the code book has the columns' numbers")
    if numbers:
        book = replace(book or CodeBook(), **numbers)
    of_unit = ("network", "unit", "rows_per_unit", "edge_weight")
    unit = _unit_of(*(left.pop(name, None) for name in of_unit))
    noise = left.pop("noise", "auto")
    FLAT["noise"].check("noise", noise)
    made = {"codebook": book, "unit": unit, "noise": Noise(noise, **_taken(left, Noise))}
    only = _settings(PowerMethod).keys() - _settings(Krylov)
    if "solver" not in left and not only.isdisjoint(left):
        left["solver"] = PowerMethod.name
    made |= {name: _chosen(name, left) for name in ("aggregation", "solver")}
    return Options(**made, **left)


def _unit_of(network: str | None, column: Any, rows: Any, weight: Any) -> Unit | None:
    if network is None:
        return None if column is None and rows is None else Person(column, 1 if rows is None else rows)
    FLAT["network"].check("network", network)
    require(column is None, "unit", "left out for networks, which protect edges or rows", column)
    is_edge = network == "edge"
    require(weight is None or is_edge, "edge_weight", "left out unless edges are protected", weight)
    return Edge(weight) if is_edge else Node()


def _taken(left: dict[str, Any], kind: type) -> dict[str, Any]:
    """Remove the fields of a value from flat options, and return them."""
    return {item.name: left.pop(item.name) for item in fields(kind) if item.name in left}


def _chosen(name: str, left: dict[str, Any]) -> Any:
    """Return the value that a word names, with its settings; refuse those of another."""
    known = FLAT[name]
    word = left.pop(name, known.default)
    known.check(name, word)
    taken = _taken(left, known.choices[word])
    for other in known.choices.values():
        for odd, value in _taken(left, other).items():
            raise InputError(
                f"{odd} must be left out with {name} {word!r}, got {value!r}; it belongs to "
                f"{name} {other.name!r}"
            )
    return known.choices[word](**taken)


def call_of(given: Mapping[str, Any]) -> str:
    """Return the Python expression that makes an estimator with flat options."""
    known = {name: value for name, value in given.items() if name in FLAT}
    for name in ("epsilon", "scores_epsilon"):  # JSON has no infinity: a record has a word
        if known.get(name) == "inf":
            known[name] = math.inf
    has_book = known.pop("codebook", None) is not None
    options = from_flat(known)
    numbers = {name: getattr(options.public, name) for name in _OF_CODE_BOOKS if known.get(name)}
    shown = [f"{name}={_shortened(value)}" for name, value in numbers.items()]
    words = {name: _shortened(value) for name, value in options.given().items() if name != "codebook"}
    if shown or has_book:
        words["codebook"] = '"codebook.toml"' if has_book else f"CodeBook({', '.join(shown)})"
    order = [item.name for item in fields(Options) if item.name in words]
    return f"FedPCA({', '.join(f'{name}={words[name]}' for name in order)})"


def check_sums_are_noised(aggregation: str, epsilon: float) -> None:
    """Refuse secure sums without noise: a coordinator can make them reveal what one silo holds."""
    if aggregation == "secure" and math.isinf(epsilon):
        raise InputError(
            "aggregation='secure' must have a finite epsilon, got epsilon=inf; without noise, secure sums "
            "can reveal a single silo"
        )
