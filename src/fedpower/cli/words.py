"""What the command line calls parameters: `n_steps` is --n-steps there."""

from collections.abc import Callable

from fedpower.errors import Sentence, in_python

_OF_FILES = {
    "without_column": " (--drop '{0}')",
    "without_extra": "--extra drop",
    "by_renaming": " (--rename OLD=NEW)",
    "by_sharing": " (--extra drop takes only what every silo has)",
}
_OF_COMMANDS = {
    "fit": _OF_FILES,
    "plan": _OF_FILES,
    "release": _OF_FILES,
    "silo": {
        "without_column": " (drop = ['{0}'] in [data] of the silo file)",
        "without_extra": 'extra_columns = "drop" in [data] of the silo file',
        "by_renaming": " (rename in [columns] of the silo file)",
        "by_sharing": " by agreeing on a study without it",
    },
    "study": {"without_column": " by listing the others with --columns", "elsewhere": "give another PATH"},
    "derive": {"elsewhere": "name another"},
    "inspect": {"elsewhere": "name another with --draft"},
    "report": {"elsewhere": "ask its owner for leave to write there"},
}
"""What is done otherwise, by command: columns are left out, results are written elsewhere."""

_PHRASES = {
    "without_column": "",  # elsewhere a result or a study names the columns
    "by_renaming": "",
    "by_sharing": "",
    "with_columns": "--columns a,b,...",
    "with_n_features": "--n-features",
    "smaller_side": "the smaller of rows and columns, {0}",
    "steps": "2,4,5",
    "unbounded": "inf",
    "never": "leave it out to wait for every silo",
    "elsewhere": "name another with -o",
    "gap": "--gap",
    "silo_names": "write NAME=PATH to name them yourself",
}
_OPTIONS = {
    "n_features": "--n-features",
    "data_version": "--data-version",
    "data_set": "--data-set",
    "drop": "--drop",
    "separator": "--separator",
    "decimal": "--decimal",
    "encoding": "--encoding",
    "rename": "--rename",
    "codebook": "--codebook",
    "ranges": "--range",
    "spectrum": "--spectrum",
    "error": "--error",
    "network": "--unit",
    "edge_weight": "--edge-weight",
    "nodes": "--nodes",
    "labels": "--labels",
}
"""Options that are no parameters of a fit."""

_FLAGS = {
    ("center", "False"): "--no-center",
    ("standardize", "False"): "--no-standardize",
    ("force", "True"): "--force",
}
_STUDIED = ("run", "status", "coordinator", "silo", "federation", "study check")
"""Commands that read parameters from a study file, whose keys are Python's names."""


def in_options(sentence: str, command: str = "fit") -> str:
    """Return a sentence with its parameters called as the options of a command; others as they are."""
    return sentence.said(_names(command)) if isinstance(sentence, Sentence) else sentence


def _names(command: str) -> Callable[[str, str], str]:
    # Only here: `fedpower --help` must not wait for NumPy.
    from fedpower.parameters import SPECS  # noqa: PLC0415

    group = command.partition(" ")[0]
    phrases = {**_PHRASES, **_OF_COMMANDS.get(group, {})}
    options = {name: spec.option for name, spec in SPECS.items() if spec.option} | _OPTIONS

    def name(parameter: str, value: str) -> str:
        if parameter in phrases:
            return phrases[parameter].format(value)
        if (parameter, value) in _FLAGS:
            return _FLAGS[parameter, value]
        if not {command, group}.isdisjoint(_STUDIED) or parameter not in options:
            return in_python(parameter, value)
        option = options[parameter].split("/")[0]
        if value == "True":
            return option
        return f"{option} {value}".rstrip()

    return name
