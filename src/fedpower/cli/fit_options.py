"""The options of `fedpower fit`: FedPCA's parameters, and where rows, ledgers and result are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fedpower.cli import values
from fedpower.cli.paths import PATH, any_file
from fedpower.cli.progress import quiet_option

PASSED_ON = (
    "epsilon",
    "delta",
    "noise",
    "solver",
    "aggregation",
    "colluders",
    "weights",
    "row_norm",
    "normalize",
    "iteration_rank",
    "schedule",
    "one_shot_start",
    "local_steps",
    "drift_correction",
    "n_steps",
    "tol",
    "max_rounds",
    "alignment",
    "reference",
    "n_participants",
    "participation",
    "min_silos",
    "deadline",
    "extra_columns",
    "random_state",
    "n_jobs",
    "device",
)
"""Options that are parameters of FedPCA; one that is not given keeps FedPCA's default."""

OPTIONS = (
    click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=any_file),
    click.option(
        "-k",
        "n_components",
        callback=values.rank,
        required=True,
        metavar="K",
        help="Number of components, a fraction of variance, or noise: those that stand above it.",
    ),
    click.option(
        "-o",
        "--output",
        type=PATH,
        default=Path("result"),
        show_default=True,
        help="Folder for the result.",
    ),
    click.option("--force", is_flag=True, help="Replace an earlier result in that folder."),
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object instead of tables."
    ),
    click.option(
        "--epsilon",
        callback=values.epsilon,
        required=True,
        metavar="NUMBER|inf",
        help="Each silo's budget for this fit.",
    ),
    click.option(
        "--delta", type=float, help="The δ of (ε, δ); by default from the number of rows."
    ),
    click.option(
        "--row-norm", type=float, help="Public bound on a row's norm; longer ones are clipped."
    ),
    click.option("--normalize", is_flag=True, default=None, help="Scale every row to norm 1."),
    click.option(
        "--noise",
        type=click.Choice(["auto", "moment", "step", "paper"]),
        help="What is noised; auto takes moment where d×d is small.",
    ),
    click.option(
        "--solver",
        type=click.Choice(["auto", "moment", "krylov", "fedpower"]),
        help="How the eigenspace is found; auto says why it chose.",
    ),
    click.option(
        "--aggregation",
        type=click.Choice(["plain", "secure"]),
        help="Whether the coordinator sees each silo's moment, or their sum alone with shared noise.",
    ),
    click.option(
        "--colluders",
        type=int,
        help="Silos of a secure sum that may collude with the coordinator; 1 by default.",
    ),
    click.option(
        "--identity",
        "identities",
        callback=values.named_paths,
        multiple=True,
        metavar="NAME=PATH",
        help="A silo's key for secure sums; repeatable. Made for the fit unless given.",
    ),
    click.option(
        "--weights",
        type=click.Choice(["rows", "noise"]),
        help="Weigh silos by their rows (default), or such that the noise is least.",
    ),
    click.option("--ledgers", type=PATH, help="Folder with a SILO.ledger for every silo."),
    click.option(
        "--ledger",
        "named_ledgers",
        callback=values.named_paths,
        multiple=True,
        metavar="NAME=PATH",
        help="A silo's ledger; repeatable.",
    ),
    click.option(
        "--data-version",
        callback=values.versions,
        multiple=True,
        metavar="[NAME=]VERSION",
        help="What the ledgers call these rows: public; a new one is a new charge. 1 by default.",
    ),
    click.option("--data-set", metavar="NAME", help="The data set that the ledgers are for."),
    click.option("--groups", metavar="COLUMN", help="One file; this column names each row's silo."),
    click.option(
        "--columns",
        callback=values.names,
        metavar="A,B,...",
        help="Use these columns and no others; where columns have no names (.npy), name them.",
    ),
    click.option("--drop", multiple=True, metavar="COLUMN", help="Leave a column out; repeatable."),
    click.option(
        "--extra",
        "extra_columns",
        type=click.Choice(["refuse", "drop"]),
        help="What to do with columns that not every silo has.",
    ),
    click.option("--n-features", type=int, help="Number of columns of svmlight files."),
    click.option("--center/--no-center", default=True, help="Centre on the pooled mean (default)."),
    click.option(
        "--center-file", type=PATH, help="Public mean instead: name,value lines, or .npy."
    ),
    click.option(
        "--scale-file", type=PATH, help="Public divisors of columns: name,value lines, or .npy."
    ),
    click.option(
        "--iteration-rank", type=int, help="Columns of the iterated basis; k + 10 by default."
    ),
    click.option(
        "--schedule",
        callback=values.schedule,
        metavar="every|decaying|halving|STEPS",
        help="At which steps a round happens, e.g. 2,4,5.",
    ),
    click.option(
        "--one-shot-start/--no-one-shot-start",
        default=None,
        help="Whether krylov opens with local steps at the silos.",
    ),
    click.option("--local-steps", type=int, help="Power steps between two rounds."),
    click.option(
        "--drift-correction",
        is_flag=True,
        default=None,
        help="Correct local steps for the silos' differences.",
    ),
    click.option("--n-steps", type=int, help="Power steps in all; by default until --tol."),
    click.option("--tol", type=float, help="Stop when a round moves the subspace by sin θ ≤ this."),
    click.option("--max-rounds", type=int, help="Stop after so many rounds."),
    click.option(
        "--alignment",
        type=click.Choice(["procrustes", "sign", "identity"]),
        help="How silos' bases are rotated before they are averaged.",
    ),
    click.option(
        "--reference",
        type=click.Choice(["first", "active", "broadcast"]),
        help="To whose basis they are rotated.",
    ),
    click.option(
        "--participants", "n_participants", type=int, help="Silos a round; all by default."
    ),
    click.option(
        "--participation",
        type=click.Choice(["sampled", "first"]),
        help="Whether they are drawn, or are the first to answer.",
    ),
    click.option("--min-silos", type=int, help="Fewest silos a round may go on with."),
    click.option(
        "--deadline", type=float, help="Seconds after which a round goes on without the rest."
    ),
    click.option(
        "--seed",
        "random_state",
        type=click.IntRange(0, 2**32 - 1),
        help="Start basis and sampling; never noise.",
    ),
    quiet_option,
    click.option("--jobs", "n_jobs", type=int, help="Silos that work at once."),
    click.option(
        "--device", metavar="NAME", help="PyTorch device for the silos' arithmetic, e.g. cuda."
    ),
)


def fit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with all options declared, in the order in which help lists them."""
    for declare in reversed(OPTIONS):
        command = declare(command)
    return command
