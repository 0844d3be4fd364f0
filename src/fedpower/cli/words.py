"""Sentences of the library in the words of the command line: `n_steps` is called --n-steps there."""

import re

DROPPING = r" \(table\.drop\(columns='(.*?)'\), or open_source\(path, drop=\['\1'\]\) for a file\)"
SURPLUS = r"extra_columns=[\"']drop[\"'] \(extra=[\"']drop[\"'] of open_source\)"
ELSEWHERE = r"name another place"
OF_FILES = ((DROPPING, r" (--drop '\1')"), (SURPLUS, "--extra drop"))
OF_COMMANDS = {
    "fit": OF_FILES,
    "plan": OF_FILES,
    "silo": (
        (DROPPING, r" (drop = ['\1'] in [data] of the silo file)"),
        (SURPLUS, 'extra_columns = "drop" in [data] of the silo file'),
    ),
    "study": (
        (DROPPING, " by listing the others with --columns"),
        (ELSEWHERE, "give another PATH"),
    ),
    "report": ((ELSEWHERE, "ask its owner for leave to write there"),),
}
"""What some commands call otherwise than `PHRASES` does: how columns are left out, and where to write.

Commands that are not here take the columns that a result or a study names.
"""

PHRASES = (
    (r"open_source\(data, columns=\[\.\.\.\]\)", "--columns a,b,..."),
    (r"open_source\(path, n_features=\.\.\.\)", "--n-features"),
    (r"(solver|noise|aggregation|weights)='(\w+)'", r"--\1 \2"),
    (r"n_components='noise'", "-k noise"),
    (r"center=False", "--no-center"),
    (r"normalize=True", "--normalize"),
    (r"epsilon=float\('inf'\)|float\('inf'\)", "inf"),
    (r"min\(n_samples, n_features\)=(\d+),?", r"the smaller of rows and columns, \1,"),
    (r"None waits for every silo", "leave it out to wait for every silo"),
    (r"\{2, 4, 5\}", "2,4,5"),
    (r"row_norm and normalize must", "row_norm and --normalize must"),
    (r"; correct drop$", "; correct --drop"),
    (ELSEWHERE, "name another with -o"),
    (r"pass force=True", "pass --force"),
    (r"pass a mapping from names to data", "write NAME=PATH to name them yourself"),
)
OPTIONS = {
    "n_components": "-k",
    "n_participants": "--participants",
    "random_state": "--seed",
    "n_jobs": "--jobs",
    "row_norm": "--row-norm",
    "iteration_rank": "--iteration-rank",
    "local_steps": "--local-steps",
    "n_steps": "--n-steps",
    "max_rounds": "--max-rounds",
    "min_silos": "--min-silos",
    "n_features": "--n-features",
    "tol": "--tol",
    "data_version": "--data-version",
    "data_set": "--data-set",
}
"""Parameters whose names cannot be taken for plain words, with the options that set them."""

_ALONE = r"(?<![\w'\"/.=-])(%s)(?![\w'\"/.-])"
_PARAMETER = re.compile(_ALONE % "|".join(OPTIONS))


def in_options(sentence: str, command: str = "fit") -> str:
    """Return a sentence of the library with parameters called as the options of a command.

    Names in quotes and parts of paths are left as they are: they are the user's own.
    """
    for phrase, option in (*OF_COMMANDS.get(command, ((DROPPING, ""),)), *PHRASES):
        sentence = re.sub(phrase, option, sentence)
    return _PARAMETER.sub(lambda found: OPTIONS[found[1]], sentence)
