"""The options of a fit: small frozen values whose fields carry default, bounds and help in one place.

`FedPCA`, the command line and study files all build `Options` from them. On the command line and in files the
values are flat: ``solver=Krylov(tol=1e-6)`` is ``--solver krylov --tol 1e-6``; `Options.flat` and `from_flat`
go from one to the other.
"""

# ruff: noqa: RUF009 - fields are declared by `setting`, which returns dataclasses.field

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np

from fedpower.errors import InputError, require
from fedpower.rows.networks import NetworkUnit, check_edge_weight
from fedpower.rules.codebook import CodeBook

Group = Literal["main", "rows", "privacy", "solver", "paper", "rounds", "running"]
"""Under which heading help lists an option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known about an option beside its name: help, bounds, place on the command line and in files."""

    help: str
    must: str = ""
    holds: Callable[[Any], bool] | None = None
    kind: type | None = None
    choices: tuple[str, ...] = ()
    group: Group = "main"
    section: str | None = None
    option: str | None = ""
    default: Any = None
    optional: bool = False

    def check(self, name: str, value: Any) -> None:
        """Refuse a value outside the bounds; a default of None is always allowed."""
        if self.holds is not None and not (value is None and self.optional):
            require(self.holds(value), name, self.must, value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number (True and False are not)."""
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


_BOUNDS: dict[str, tuple[str, Callable[[Any], bool], type]] = {
    "count": ("a whole number of at least 1", lambda v: _is_whole(v) and v >= 1, int),
    "flag": ("True or False", lambda v: isinstance(v, bool | np.bool_), bool),
    "positive": ("a number above 0", lambda v: is_number(v) and v > 0, float),
    "share": ("a number between 0 and 1", lambda v: is_number(v) and 0 < v < 1, float),
    "tol": ("a number of at least 0 and below 1", lambda v: is_number(v) and 0 <= v < 1, float),
    "jobs": ("a whole number other than 0", lambda v: _is_whole(v) and v != 0, int),
    "text": ("text", lambda v: isinstance(v, str) and v != "", str),
}


def _declare(default: Any, help: str, bounds: str | tuple[str, ...] | None = None, **more: Any) -> Setting:
    if isinstance(bounds, tuple):
        listed = ", ".join(repr(choice) for choice in bounds)
        more |= {"must": f"one of {listed}", "holds": lambda v: isinstance(v, str) and v in bounds}
        more |= {"kind": str, "choices": bounds}
    elif bounds is not None:
        must, holds, kind = _BOUNDS[bounds]
        more = {"must": must, "holds": holds, "kind": kind} | more
    return Setting(help=help, default=default, optional=default is None, **more)


def setting(default: Any, help: str, bounds: str | tuple[str, ...] | None = None, **more: Any) -> Any:
    """Return a dataclass field; ``bounds`` names a kind of value, or lists the words that are allowed."""
    return field(default=default, metadata={"setting": _declare(default, help, bounds, **more)})


class _Value:
    """A frozen value: its fields are checked when it is made, and its repr shows what is not a default."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            each.metadata["setting"].check(each.name, getattr(self, each.name))

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.given().items()]
        return f"{type(self).__name__}({', '.join(given)})"

    def given(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}  # type: ignore[arg-type]
        return {
            name: value for name, (value, default) in values.items() if np.ndim(value) or value != default
        }


# --- solvers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class _Solver(_Value):
    noises: ClassVar[tuple[str, ...]] = ("none", "moment", "step", "paper")  # what may be noised with it

    iteration_rank: int | None = setting(
        None,
        "Columns of the iterated basis; k + 10 by default.",
        "count",
        group="solver",
        section="components",
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Upload(_Solver):
    """Each silo uploads its covariance once, and everything follows from the sum.

    Parameters
    ----------
    iteration_rank : int, optional
        Columns of ``basis_``; min(k + 10, n_features) by default.
    """

    name: ClassVar[str] = "moment"
    noises: ClassVar[tuple[str, ...]] = ("none", "moment")


@dataclass(frozen=True, kw_only=True, repr=False)
class Iterative(_Solver):
    """What solvers that take several rounds have in common."""

    n_steps: int | None = setting(
        None, "Power steps in total; by default until --tol.", "count", group="paper", section="solver"
    )
    tol: float = setting(
        1e-9, "Stop when a round moves the subspace by sin θ ≤ this.", "tol", group="solver", section="solver"
    )
    max_rounds: int = setting(500, "Stop after this many rounds.", "count", group="solver", section="solver")
    n_participants: int | None = setting(
        None,
        "Silos per round; all by default.",
        "count",
        group="paper",
        section="rounds",
        option="--participants",
    )
    participation: Literal["sampled", "first"] = setting(
        "sampled",
        "Draw the participants, or take the first to answer.",
        ("sampled", "first"),
        group="paper",
        section="rounds",
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Krylov(Iterative):
    """A Krylov space of block products: a few rounds, each of n_features × iteration_rank numbers.

    Parameters
    ----------
    tol : float, default=1e-9
        Stop once a round moves the leading subspace by sin θ ≤ tol; 0 never stops early.
    max_rounds : int, default=500
        Stop after this many rounds in any case.
    one_shot_start : bool, optional
        Whether silos open with local steps, which about halves the rounds. By default only where nothing is
        private.
    iteration_rank : int, optional
        Columns of the iterated basis; min(k + 10, n_features) by default.
    n_steps : int, optional
        Steps that share the budget where every product is noised; 10 by default.
    n_participants : int, optional
        Silos per round; all by default.
    participation : {"sampled", "first"}, default="sampled"
        Whether they are drawn with replacement, or are the first to answer.

    Examples
    --------
    >>> from fedpower import Krylov
    >>> Krylov(tol=1e-6)
    Krylov(tol=1e-06)
    """

    name: ClassVar[str] = "krylov"
    noises: ClassVar[tuple[str, ...]] = ("none", "moment", "step")
    one_shot_start: bool | None = setting(
        None,
        "Whether krylov opens with local steps at the silos.",
        "flag",
        group="solver",
        section="solver",
        option="--one-shot-start/--no-one-shot-start",
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Auto(Krylov):
    """One upload or a Krylov space, whichever is cheaper; these are the settings of the latter."""

    name: ClassVar[str] = "auto"


@dataclass(frozen=True, kw_only=True, repr=False)
class PowerMethod(Iterative):
    """The paper's federated power method.

    Parameters
    ----------
    schedule : {"every", "decaying", "halving"}, Schedule or iterable of int, default="every"
        At which steps a round happens.
    local_steps : int, default=1
        Local power steps between two rounds (at first, where the schedule decays).
    drift_correction : bool, default=False
        Correct local steps for the difference between a silo's covariance and the pooled one, at the cost of
        one more exchange before each round.
    n_steps : int, optional
        Steps in total. By default until ``tol`` or ``max_rounds``; 10 where every step is noised.
    alignment : {"procrustes", "sign", "identity"}, default="procrustes"
        How local bases are rotated before they are averaged.
    reference : {"first", "active", "broadcast"}, default="first"
        To whose basis they are rotated; ``broadcast`` aligns at the silos and halves the upload.
    tol, max_rounds, n_participants, participation, iteration_rank
        As of `Krylov`.

    Examples
    --------
    >>> from fedpower import PowerMethod
    >>> PowerMethod(schedule="halving", local_steps=8)
    PowerMethod(schedule='halving', local_steps=8)
    """

    name: ClassVar[str] = "fedpower"
    schedule: Any = setting(
        "every", "At which steps a round happens, e.g. 2,4,5.", group="paper", section="solver"
    )
    local_steps: int = setting(1, "Power steps between two rounds.", "count", group="paper", section="solver")
    drift_correction: bool = setting(
        False, "Correct local steps for the silos' differences.", "flag", group="paper", section="solver"
    )
    alignment: Literal["procrustes", "sign", "identity"] = setting(
        "procrustes",
        "How silos' bases are rotated before they are averaged.",
        ("procrustes", "sign", "identity"),
        group="paper",
        section="solver",
    )
    reference: Literal["first", "active", "broadcast"] = setting(
        "first",
        "To whose basis they are rotated.",
        ("first", "active", "broadcast"),
        group="paper",
        section="solver",
    )


Solver = Upload | Krylov | PowerMethod


# --- aggregation -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, repr=False)
class _Rounds(_Value):
    min_silos: int | None = setting(
        None, "Fewest silos that a round may continue with.", "count", group="rounds", section="rounds"
    )
    deadline: float | None = setting(
        None,
        "Seconds after which a round continues without the rest.",
        "positive",
        must="a positive number of seconds",
        group="rounds",
        section="rounds",
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Plain(_Rounds):
    """The coordinator reads every silo's noised answer.

    Parameters
    ----------
    weights : {"rows", "noise"}, default="rows"
        Whether silos count by their rows, as pooled rows would, or such that the pooled noise is least.
    min_silos : int, optional
        Fewest silos that a round may continue with; all by default.
    deadline : float, optional
        Seconds after which a round continues with those that answered.
    """

    name: ClassVar[str] = "plain"
    colluders: ClassVar[int] = 1
    weights: Literal["rows", "noise"] = setting(
        "rows",
        "Weigh silos by their rows (default), or such that the noise is least.",
        ("rows", "noise"),
        group="privacy",
        section="privacy",
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class Secure(_Rounds):
    """The coordinator reads the silos' sum only, and they share the noise of one trusted curator.

    Needs the extra ``secure`` and a finite ``epsilon``.

    Parameters
    ----------
    colluders : int, default=1
        How many silos may tell the coordinator everything they know; noise is √(m/(m − colluders)) times that
        of a trusted curator.
    min_silos : int, optional
        Fewest silos that the sum may continue with; all by default.
    deadline : float, optional
        Seconds after which a round continues with those that answered.

    Examples
    --------
    >>> from fedpower import Secure
    >>> Secure(colluders=2)
    Secure(colluders=2)
    """

    name: ClassVar[str] = "secure"
    weights: ClassVar[Literal["rows", "noise"]] = "rows"
    colluders: int = setting(
        1,
        "Silos that may collude with the coordinator; 1 by default.",
        "count",
        group="privacy",
        section="privacy",
    )


Aggregation = Plain | Secure


# --- the unit of privacy ---------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Person(_Value):
    """A person is protected with all rows that a silo has of her.

    Parameters
    ----------
    column : str, optional
        Column that identifies a row's person. It is not a feature, and never leaves a silo.
    rows : int, default=1
        Up to this many rows of a person count in full, at as many times the noise.

    Examples
    --------
    >>> from fedpower import Person
    >>> Person("patient_id", rows=3)
    Person(column='patient_id', rows=3)
    """

    column: str | None = setting(
        None,
        "Column that identifies a row's person, who is protected with all her rows of a silo.",
        "text",
        must="the name of the column that identifies a row's person",
        section="rows",
    )
    rows: int = setting(
        1,
        "Count so many rows of a person in full, at as many times the noise.",
        "count",
        group="rows",
        section="rows",
    )


@dataclass(frozen=True, repr=False)
class Edge(_Value):
    """One edge of one silo's network is protected.

    Parameters
    ----------
    max_weight : float, optional
        Public maximum at which weights are capped; without it they must be 0 or 1.
    """

    name: ClassVar[NetworkUnit] = "edge"
    max_weight: float | None = setting(
        None,
        "Public maximum at which weights of edges are capped; without it they are 0 or 1.",
        section="rows",
        option=None,
        kind=float,
    )

    def __post_init__(self) -> None:
        check_edge_weight(self.max_weight)


@dataclass(frozen=True, repr=False)
class Node(_Value):
    """One row of one silo's adjacency matrix is protected (not a node with all its edges)."""

    name: ClassVar[NetworkUnit] = "row"
    max_weight: ClassVar[None] = None


Unit = Person | Edge | Node


# --- noise -----------------------------------------------------------------------------------------

NoiseKind = Literal["auto", "moment", "clipped", "step", "paper"]


@dataclass(frozen=True, repr=False)
class Noise(_Value):
    """What is noised, and how its budget is divided.

    Parameters
    ----------
    kind : {"auto", "moment", "clipped", "step", "paper"}, default="auto"
        The covariance once; clipped products (for wide rows whose leading directions hold little of the
        variance); every step's product; or the same with the paper's printed noise.
    energy : float, optional
        A public guess of the share of the variance in the k components, from which ``clipped`` divides its
        budget; 4k/d by default.
    scores_epsilon : float, optional
        Part of ``epsilon`` for counting rows by their scores on the first two components.

    Examples
    --------
    >>> from fedpower import Noise
    >>> Noise("moment", scores_epsilon=0.1)
    Noise(kind='moment', scores_epsilon=0.1)
    """

    kind: NoiseKind = setting(
        "auto",
        "What is noised; auto takes what is predicted to be most accurate.",
        ("auto", "moment", "clipped", "step", "paper"),
        group="privacy",
        section="privacy",
    )
    energy: float | None = setting(
        None,
        "Guess of the share of the variance in the k components; auto then knows when to clip.",
        "share",
        group="privacy",
        section="privacy",
    )
    scores_epsilon: float | None = setting(
        None,
        "Part of epsilon for a histogram of scores on two components in the report.",
        "positive",
        group="privacy",
        section="privacy",
    )


# --- all of them -----------------------------------------------------------------------------------

SOLVERS: dict[str, type[Solver]] = {each.name: each for each in (Auto, PowerMethod, Krylov, Upload)}
AGGREGATIONS: dict[str, type[Aggregation]] = {each.name: each for each in (Plain, Secure)}


def _as_value(name: str, given: Any, kinds: Mapping[str, type], hint: str) -> Any:
    """Return a value, made with its defaults where a word is given for it."""
    if isinstance(given, str) and given in kinds:
        return kinds[given]()
    known = tuple(kinds.values())
    listed = ", ".join(repr(each) for each in kinds)
    require(isinstance(given, known), name, f"one of {listed} or {hint}", given)
    return given


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a fit, checked; `FedPCA` documents each."""

    n_components: Any = setting(
        None,
        "Number of components, a fraction of variance, or auto: as many as are determined.",
        section="components",
        option="-k",
    )
    epsilon: float = setting(
        1.0,
        "Each silo's budget for this fit; 1 is usual, inf is exact and NOT private.",
        "positive",
        section="privacy",
    )
    delta: float | None = setting(
        None,
        "The δ of (ε, δ); by default from the number of rows.",
        "share",
        group="privacy",
        section="privacy",
    )
    center: bool = setting(
        True,
        "Centre on the pooled mean (default), also after --center-file.",
        "flag",
        group="rows",
        section="rows",
        option="--center/--no-center",
    )
    standardize: bool = setting(
        True,
        "Correlations (default), or covariances in the columns' own units.",
        "flag",
        group="rows",
        section="rows",
        option="--standardize/--no-standardize",
    )
    ranges: Any = setting(None, "Between which numbers cells of columns are.", section="columns", option=None)
    codebook: CodeBook | None = setting(None, "Code book with rules and numbers of columns.", option=None)
    unit: Any = None
    noise: Any = Noise()
    aggregation: Any = Plain()
    solver: Any = Auto()
    device: str | None = setting(
        None,
        "PyTorch device for the silos' arithmetic, e.g. cuda.",
        "text",
        must="the name of a PyTorch device",
        group="running",
    )
    random_state: Any = setting(
        None, "Start basis and sampling; never noise.", group="running", section="solver", option="--seed"
    )
    n_jobs: int | None = setting(None, "Silos that work at once.", "jobs", group="running", option="--jobs")

    def __post_init__(self) -> None:
        changed: dict[str, Any] = {
            "solver": _as_value("solver", self.solver, SOLVERS, "a solver such as Krylov()"),
            "aggregation": _as_value("aggregation", self.aggregation, AGGREGATIONS, "Plain() or Secure()"),
        }
        if isinstance(self.noise, str):
            FLAT["noise"].check("noise", self.noise)
            changed["noise"] = Noise(self.noise)  # type: ignore[arg-type]
        else:
            require(isinstance(self.noise, Noise), "noise", "a word or Noise()", self.noise)
        if isinstance(self.unit, str):
            FLAT["unit"].check("unit", self.unit)
            changed["unit"] = Person(self.unit)
        else:
            kinds = (Person, Edge, Node, type(None))
            must = "the name of the column that identifies a row's person, Person(), Edge() or Node()"
            require(isinstance(self.unit, kinds), "unit", must, self.unit)
        for name, value in changed.items():
            object.__setattr__(self, name, value)
        for each in fields(self):
            if each.metadata:
                each.metadata["setting"].check(each.name, getattr(self, each.name))
        require(
            self.codebook is None or isinstance(self.codebook, CodeBook),
            "codebook",
            "a CodeBook or the path of one",
            type(self.codebook).__name__,
        )
        check_sums_are_noised(self.aggregation.name, self.epsilon)

    def replace(self, **changed: Any) -> Self:
        """Return the options with others in place of some."""
        return replace(self, **changed)

    @property
    def is_private(self) -> bool:
        """Whether anything is promised about the rows."""
        return math.isfinite(self.epsilon)

    @property
    def network(self) -> Edge | Node | None:
        """What is protected of networks; None where silos hold rows."""
        return self.unit if isinstance(self.unit, Edge | Node) else None

    @property
    def person(self) -> Person:
        """Who is protected; without a column, nobody but the rows."""
        return self.unit if isinstance(self.unit, Person) else Person()

    @property
    def public(self) -> CodeBook:
        """Public numbers about columns that were given; without any, an empty code book."""
        return CodeBook() if self.codebook is None or not self.codebook.is_draft else self.codebook

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
    def paper_settings(self) -> tuple[str, ...]:
        """The names of options that were given and that only the paper's method has."""
        only = {name for name, each in FLAT.items() if each.group == "paper"} - {"participation"}
        return tuple(name for name in self.solver.given() if name in only)

    def flat(self) -> dict[str, Any]:
        """Return every option by its name on the command line and in files."""
        book, unit, noise = self.public, self.unit, self.noise
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        for each in (noise, self.aggregation, self.solver):
            values |= {item.name: getattr(each, item.name) for item in fields(each)}
        del values["kind"]
        return values | {
            "noise": noise.kind,
            "aggregation": self.aggregation.name,
            "solver": self.solver.name,
            "unit": self.person.column,
            "rows_per_unit": self.person.rows,
            "network": None if self.network is None else self.network.name,
            "edge_weight": None if self.network is None else unit.max_weight,
            **{name: getattr(book, name) for name in _OF_CODE_BOOKS},
        }


_OF_CODE_BOOKS = {
    "row_norm": _declare(
        None, "Public bound on a row's norm; longer ones are clipped.", kind=float, section="rows"
    ),
    "normalize": _declare(False, "Scale every row to norm 1.", "flag", group="rows", section="rows"),
    "offset": _declare(None, "Public numbers to subtract from columns.", section="columns", option=None),
    "scale": _declare(None, "Public divisors of columns.", section="columns", option=None),
}
"""Options that are fields of a code book."""


def _flat_settings() -> Iterator[tuple[str, Setting]]:
    kinds: dict[str, Iterable[str]] = {"solver": SOLVERS, "aggregation": AGGREGATIONS}
    help_of = {
        "solver": "How the eigenspace is found; auto chooses and states why.",
        "aggregation": "Whether the coordinator sees each silo's covariance, or their sum with shared noise.",
    }
    renamed = {"kind": "noise", "column": "unit", "rows": "rows_per_unit", "max_weight": "edge_weight"}
    for each in fields(Options):
        if each.metadata:
            yield each.name, each.metadata["setting"]
        else:
            if each.name in kinds:
                words = tuple(kinds[each.name])
                group: Group = "privacy" if each.name == "aggregation" else "solver"
                yield each.name, _declare(words[0], help_of[each.name], words, group=group, section=group)
            if each.name == "unit":
                yield "network", _declare(
                    None, "Silos hold networks; an edge is protected, or a row of the adjacency.",
                    ("edge", "row"), section="rows", option=None,
                )  # fmt: skip
            for kind in _KINDS[each.name]:
                for item in fields(kind):
                    yield renamed.get(item.name, item.name), item.metadata["setting"]
        if each.name == "codebook":
            yield from _OF_CODE_BOOKS.items()


_KINDS: dict[str, Iterable[type]] = {
    "unit": (Person, Edge),
    "noise": (Noise,),
    "aggregation": (Plain, Secure),
    "solver": SOLVERS.values(),
}

FLAT: dict[str, Setting] = dict(_flat_settings())
"""Every option of a fit by its name on the command line and in files, with what is known about it."""


def register_solver(kind: type[Any]) -> None:
    """Add a solver to those that users can choose, with its settings."""
    SOLVERS[kind.name] = kind
    FLAT.update(_flat_settings())


def option_name(name: str) -> str:
    """Return what the command line calls an option: ``row_norm`` is --row-norm."""
    known = FLAT[name].option if name in FLAT else None
    return (known or f"--{name.replace('_', '-')}").split("/")[0]


def from_flat(given: Mapping[str, Any]) -> Options:
    """Return the options of a fit from flat ones; those that are missing or None keep their defaults."""
    left = {name: value for name, value in given.items() if value is not None}
    made: dict[str, Any] = {}
    numbers = {name: left.pop(name) for name in _OF_CODE_BOOKS if name in left}
    made["codebook"] = _with_numbers(left.pop("codebook", None), numbers)
    made["unit"] = _unit_of(left)
    for name in ("unit", "rows_per_unit", "network", "edge_weight"):
        left.pop(name, None)
    kind = left.pop("noise", "auto")
    FLAT["noise"].check("noise", kind)
    made["noise"] = Noise(kind, **_taken(left, Noise))
    made["aggregation"] = _chosen("aggregation", left, AGGREGATIONS, "plain")
    only = {each.name for each in fields(PowerMethod)} - {each.name for each in fields(Krylov)}
    given_of_paper = any(name in left and left[name] != FLAT[name].default for name in only)
    if given_of_paper and left.get("solver", "auto") == "auto":
        left["solver"] = PowerMethod.name
    made["solver"] = _chosen("solver", left, SOLVERS, "auto")
    return Options(**made, **left)


def _with_numbers(book: CodeBook | None, numbers: dict[str, Any]) -> CodeBook | None:
    given = {name: value for name, value in numbers.items() if value is not False}
    if not given:
        return book
    if book is not None and not book.is_draft:
        raise InputError(
            f"{next(iter(given))} must not be given with a code book that has the columns' numbers; "
            "leave one of them out"
        )
    return CodeBook(**given) if book is None else replace(book, **given)


def _unit_of(given: Mapping[str, Any]) -> Unit | None:
    network = given.get("network")
    if network is not None:
        FLAT["network"].check("network", network)
        if given.get("unit") is not None:
            raise InputError("unit must be left out of networks: edges or rows are protected, not persons")
        weight = given.get("edge_weight")
        require(
            weight is None or network == "edge", "edge_weight", "left out unless edges are protected", weight
        )
        return Node() if network == "row" else Edge(weight)
    column, rows = given.get("unit"), given.get("rows_per_unit", 1)
    return None if column is None and rows == 1 else Person(column, rows)


def _taken(left: dict[str, Any], kind: type) -> dict[str, Any]:
    """Remove the fields of a value from flat options, and return them."""
    return {each.name: left.pop(each.name) for each in fields(kind) if each.name in left}


def _chosen(name: str, left: dict[str, Any], kinds: Mapping[str, Any], default: str) -> Any:
    """Return the value that a word names, with its settings; refuse those of another."""
    word = left.pop(name, default)
    FLAT[name].check(name, word)
    taken = _taken(left, kinds[word])
    for other in kinds.values():
        odd = [each.name for each in fields(other) if each.name in left]
        for each in odd:
            if left[each] == FLAT[each].default:  # as a form that shows all options gives it
                del left[each]
                continue
            raise InputError(
                f"{each} must be left out with {name} {word!r}, got {left[each]!r}; it belongs to "
                f"{name} {other.name!r}"
            )
    return kinds[word](**taken)


def call_of(given: Mapping[str, Any]) -> str:
    """Return the Python expression that makes an estimator with flat options."""
    # JSON has no infinity: a record writes it as a word.
    known = {
        name: math.inf if isinstance(value, str) and value == "inf" else value
        for name, value in given.items()
        if name in FLAT and name != "codebook"
    }
    options = from_flat(known)
    public = options.public
    numbers = {name: getattr(public, name) for name in _OF_CODE_BOOKS if name in given}
    shown = {name: _shortened(value) for name, value in numbers.items() if np.ndim(value) or value}
    book = f"CodeBook({', '.join(f'{name}={value}' for name, value in shown.items())})" if shown else None
    if given.get("codebook") is not None:
        book = '"codebook.toml"'
    words = []
    for each in fields(Options):
        value = getattr(options, each.name)
        if each.name == "codebook":
            words += [] if book is None else [f"codebook={book}"]
        elif np.ndim(value) or value != each.default:
            words.append(f"{each.name}={_shortened(value)}")
    return f"FedPCA({', '.join(words)})"


_MOST_SHOWN = 6


def _shortened(value: Any) -> str:
    if isinstance(value, float) and math.isinf(value):
        return 'float("inf")'
    if isinstance(value, list | tuple | np.ndarray) and len(value) > _MOST_SHOWN:
        return "[...]"  # run.json has them
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)


def check_sums_are_noised(aggregation: str, epsilon: float) -> None:
    """Refuse secure sums without noise: a coordinator can make them reveal what one silo holds."""
    if aggregation == "secure" and math.isinf(epsilon):
        raise InputError(
            "aggregation='secure' must have a finite epsilon, got epsilon=inf; exact sums under masks can be "
            "made to reveal one silo, so use aggregation='plain' or a finite epsilon"
        )
