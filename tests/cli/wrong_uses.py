# ruff: noqa: E501
"""Everything a new user can do wrong, with the sentence that each gets: for the tests and for the docs.

In a sentence ``...`` stands for what differs between two runs.
"""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from hospitals import EXACT, PRIVATE, succeed, write_hospitals

NORTH = ("fit", "north.csv", "-o", "new")


class Wrong(NamedTuple):
    """A use, what it is told, and what the machine lacks meanwhile: a permission, or room on its disk."""

    words: tuple[object, ...]
    sentence: str
    under: str = ""


# fmt: off
GROUPS: dict[str, dict[str, Wrong]] = {
    "The command": {
        "no such command": Wrong(("fitt",), "there is no command 'fitt' (did you mean 'fit'?); see `fedpower --help`"),
        "no files": Wrong(("fit",), "Missing argument 'FILE...'; see `fedpower fit --help`"),
        "no number of components": Wrong(("fit", "north.csv", "--epsilon", "inf", "-o", "new"), "Missing option '-k'; see `fedpower fit --help`"),
        "no epsilon": Wrong(("fit", "north.csv", "-k", 2, "-o", "new"), "Missing option '--epsilon'; see `fedpower fit --help`"),
        "a misspelt option": Wrong((*NORTH, *EXACT, "--sead", 1), "No such option '--sead'. (Did you mean one of: '--deadline', '--schedule', '--seed'?); see `fedpower fit --help`"),
        "a misspelt choice": Wrong((*NORTH, *EXACT, "--alignment", "by-eye"), "Invalid value for '--alignment': 'by-eye' is not one of 'procrustes', 'sign', 'identity'; see `fedpower fit --help`"),
    },
    "Privacy parameters": {
        "epsilon zero": Wrong((*NORTH, "-k", 2, "--epsilon", 0, "--normalize"), "Invalid value for '--epsilon': it must be a number above 0, got '0'; 1 is usual, and inf means no privacy; see `fedpower fit --help`"),
        "epsilon nan": Wrong((*NORTH, "-k", 2, "--epsilon", "nan", "--normalize"), "Invalid value for '--epsilon': it must be a number above 0, got 'nan'; 1 is usual, and inf means no privacy; see `fedpower fit --help`"),
        "epsilon in words": Wrong((*NORTH, "-k", 2, "--epsilon", "small", "--normalize"), "Invalid value for '--epsilon': it must be a number above 0, got 'small'; 1 is usual, and inf means no privacy; see `fedpower fit --help`"),
        "epsilon too large": Wrong((*NORTH, "-k", 2, "--epsilon", 100, "--normalize"), "--epsilon must be from 0.0001 to 60, or inf for no privacy, got 100; a larger one promises nothing"),
        "epsilon too small": Wrong((*NORTH, "-k", 2, "--epsilon", 1e-9, "--normalize"), "--epsilon must be from 0.0001 to 60, or inf for no privacy, got 1e-09; a smaller one leaves nothing but noise"),
        "two bounds on rows": Wrong((*NORTH, "-k", 2, "--epsilon", 1, "--row-norm", 1, "--normalize"), "--row-norm and --normalize must not be given together, got --row-norm 1.0 and --normalize; choose one"),
        "no bound on rows": Wrong((*NORTH, "-k", 2, "--epsilon", 1, "--solver", "krylov"), "a fit with epsilon=1 that is given centres, scales or settings of its own must know a public bound on the norm of a row, got none; give --row-norm B, --normalize or --codebook, or leave all of them out to have them found privately"),
        "a range from above": Wrong((*NORTH, "-k", 2, "--epsilon", 1, "--range", "age=120:0"), "Invalid value for '--range': it must be COLUMN=LOW:HIGH with the smaller number first, got 'age=120:0'; see `fedpower fit --help`"),
        "a range of no column": Wrong((*NORTH, "-k", 2, "--epsilon", 1, "--range", "weather=0:1"), "ranges must be of columns of the fit, got 'weather'; the columns are ..."),
        "a code book that is not there": Wrong((*NORTH, "-k", 2, "--epsilon", 1, "--codebook", "none.toml"), "a code book must exist, got no file at none.toml; check the path"),
        "a code book and a bound": Wrong((*NORTH, "-k", 2, "--epsilon", 1, "--codebook", "none.toml", "--row-norm", 1), "--row-norm must be left alone with --codebook, which says it already, got both; leave one of them out"),
        "preparation without privacy": Wrong(("prepare", "north.csv", "--epsilon", "inf", "-o", "new"), "preparation must be given nothing but a finite --epsilon and ranges, got more; leave out --row-norm, --normalize, --codebook, public centres and scales, and settings of other solvers"),
        "a negative bound": Wrong((*NORTH, "-k", 2, "--epsilon", 1, "--row-norm=-1"), "--row-norm must be a positive finite number, got -1.0; give a public bound"),
        "a bound beyond all measure": Wrong((*NORTH, "-k", 2, "--epsilon", 1, "--row-norm", 1e308), "--row-norm must lie between 1e-150 and 1e+150, got 1e+308; give a public bound near the rows' length, or the columns in other units"),
        "delta of one": Wrong((*NORTH, *PRIVATE, "--delta", 1), "--delta must lie between 0 and 1, got 1.0; 1e-6 is usual"),
        "a secure sum of one silo": Wrong((*NORTH, *PRIVATE, "--aggregation", "secure"), "a secure sum must have more silos than the 1 that may collude, got 1 as the fewest of 1; bring more silos, declare fewer colluders or change --min-silos"),
        "a secure sum of steps": Wrong(("fit", "north.csv", "south.parquet", "east.csv", *PRIVATE, "--aggregation", "secure", "--noise", "step", "-o", "new"), "--aggregation secure must go with --noise moment, got 'step', of which each step is one more sum that could be told apart from the others; leave noise alone, or set it to 'moment' for wide rows"),
        "a moment kept where there is none": Wrong((*NORTH, *PRIVATE, "--solver", "krylov", "--keep-moment"), "--keep-moment must go with --solver moment and --noise moment or --epsilon inf, got settings with which no silo sends its moment; leave --solver alone"),
        "an analysis of no moment": Wrong(("derive", "none", "correlate"), "none must be a folder that `fedpower release` wrote, got nothing there; check the path"),
        "an audit of nothing": Wrong(("audit", "--epsilon", "inf"), "an audit must put a finite epsilon to the test, got inf, no promise at all; give one"),
    },
    "Components and iterations": {
        "no components": Wrong((*NORTH, "-k", 0, "--epsilon", "inf"), "Invalid value for '-k': it must be a number of components such as 4, a fraction of variance such as 0.9, or noise for those that stand above it, got '0'; see `fedpower fit --help`"),
        "more components than columns": Wrong((*NORTH, "-k", 6, "--epsilon", "inf"), "-k must be a whole number from 1 to the smaller of rows and columns, 5, a fraction between 0 and 1 or 'noise', got 6; choose one of these"),
        "one and a half components": Wrong((*NORTH, "-k", 1.5, "--epsilon", "inf"), "Invalid value for '-k': it must be a number of components such as 4, a fraction of variance such as 0.9, or noise for those that stand above it, got '1.5'; see `fedpower fit --help`"),
        "k by the noise without noise": Wrong((*NORTH, "-k", "noise", "--epsilon", "inf"), "-k noise must go with --noise moment, got --epsilon inf: there is no noise to stand above; give a number or a fraction of variance"),
        "k by the noise of steps": Wrong((*NORTH, "-k", "noise", "--epsilon", 1, "--row-norm", 10, "--noise", "step"), "-k noise must go with --noise moment, got --noise step, whose releases do not show the whole spectrum; give a number"),
        "nothing above the noise": Wrong((*NORTH, "-k", "noise", "--epsilon", 0.01, "--row-norm", 10), "-k noise must find a component that stands above the noise, got none: the largest variance is ... of what it must exceed; bring more rows or a larger epsilon, or give a whole number; what was released is spent and not kept, so another fit spends again"),
        "iteration rank above the columns": Wrong((*NORTH, *EXACT, "--iteration-rank", 99), "--iteration-rank must lie between -k 2 and the number of columns 5, got 99; choose one in between"),
        "an unknown schedule": Wrong((*NORTH, *EXACT, "--schedule", "sometimes"), "Invalid value for '--schedule': it must be every, decaying, halving or steps such as 2,4,5, got 'sometimes'; see `fedpower fit --help`"),
        "a schedule that starts at zero": Wrong((*NORTH, *EXACT, "--schedule", "0,2"), "an explicit schedule must be increasing steps of at least 1, got [0, 2]; give e.g. 2,4,5"),
        "no local steps": Wrong((*NORTH, *EXACT, "--local-steps", 0), "--local-steps must be a whole number of at least 1, got 0; give one"),
        "a tolerance above one": Wrong((*NORTH, *EXACT, "--tol", 2), "--tol must lie in [0, 1), got 2.0; 0 never stops early"),
        "more silos than there are": Wrong((*NORTH, *EXACT, "--min-silos", 2), "--min-silos must lie between 1 and the 1 silos, got 2; choose a number in between"),
        "a plan of a negative gap": Wrong(("plan", "--features", 9, "--silos", "2x50", "-k", 2, "--epsilon", 1, "--gap=-1"), "an eigengap must lie above 0 and at most at 0.5 for 2 components of rows of norm at most 1, got -1; give one in between"),
        "no time to answer": Wrong((*NORTH, *EXACT, "--deadline", 0), "--deadline must be a positive number of seconds, got 0.0; leave it out to wait for every silo"),
        "a negative seed": Wrong((*NORTH, *EXACT, "--seed", -1), "Invalid value for '--seed': -1 is not in the range 0<=x<=4294967295; see `fedpower fit --help`"),
        "an unknown device": Wrong((*NORTH, *EXACT, "--device", "tpu"), "device must be one that PyTorch has here and that computes in float64, got 'tpu'; give 'cuda' or 'cpu', or leave it out"),
    },
    "Files": {
        "no such file": Wrong(("fit", "nowhere.csv", *EXACT, "-o", "new"), "nowhere.csv must be a file that exists, got none there; give one file per silo"),
        "a folder": Wrong(("fit", ".", *EXACT, "-o", "new"), ". must be a file that exists, got a folder; give one file per silo"),
        "an unknown ending": Wrong(("fit", "notes.txt", *EXACT, "-o", "new"), "notes.txt must end in one of .csv, .csv.gz, .tsv, .tsv.gz, .parquet, .feather, .arrow, .toml, .npy, .npz, .h5ad, .svm, .svm.gz, .libsvm, .libsvm.gz, .svmlight, .svmlight.gz, got '.txt'; rename or convert the file"),
        "an empty file": Wrong(("fit", "empty.csv", *EXACT, "-o", "new"), "empty.csv must have a line of column names and rows, got an empty file; write it again"),
        "a header without rows": Wrong(("fit", "header.csv", *EXACT, "-o", "new"), "header.csv must have at least one row, got none; leave this silo out"),
        "a row that is too short": Wrong(("fit", "ragged.csv", *EXACT, "-o", "new"), "every row of ragged.csv must have 2 cells like its first line, got 1 at row 2; repair that row"),
        "semicolons and decimal commas": Wrong(("fit", "semicolon.csv", *EXACT, "-o", "new"), "cells of semicolon.csv must be separated by commas, got semicolons; save it with commas between cells and points in numbers"),
        "tabs in a CSV file": Wrong(("fit", "tabs.csv", *EXACT, "-o", "new"), "cells of tabs.csv must be separated by commas as its ending says, got tabs; let its name end in .tsv"),
        "bytes that are no text": Wrong(("fit", "junk.csv", *EXACT, "-o", "new"), "junk.csv must be delimited text in UTF-8, got one that cannot be parsed to its end; write it again as plain CSV"),
        "half a Parquet file": Wrong(("fit", "cut.parquet", *EXACT, "-o", "new"), "cut.parquet must be a complete Parquet file, got one that is truncated or damaged; write or copy it again"),
        "a broken svmlight line": Wrong(("fit", "bad.svm", *EXACT, "-o", "new"), "every line of bad.svm must be a label and index:value pairs, got something else at row 1; write the file in svmlight format"),
        "a broken query file": Wrong(("fit", "bad.toml", *EXACT, "-o", "new"), "bad.toml must be a TOML file in UTF-8, got one that cannot be parsed; correct it"),
        "a single row to centre": Wrong(("fit", "one.npy", *EXACT, "-o", "new"), "centring must have 2 rows at least, got n_samples = 1; bring more rows or pass --no-center"),
        "the same name twice": Wrong(("fit", "east.csv", "east.npy", *EXACT, "-o", "new"), "silos must have different names, got 'east' for east.csv and east.npy; write NAME=PATH to name them yourself"),
        "the same file twice": Wrong(("fit", "a=east.csv", "b=east.csv", *EXACT, "-o", "new"), "each silo must have rows of its own, got east.csv for both 'a' and 'b'; give every file once"),
        "groups by a measurement": Wrong(("fit", "north.csv", "--groups", "age", *EXACT, "-o", "new"), "column 'age' of north.csv must name silos, got 60 values for 60 rows, most of them once; split by a column that says whose each row is"),
        "groups of two files": Wrong(("fit", "north.csv", "east.csv", "--groups", "age", *EXACT, "-o", "new"), "--groups must go with one file, got 2; give one file, or leave --groups out and let each file be a silo"),
    },
    "Columns": {
        "an unknown column": Wrong((*NORTH, *EXACT, "--columns", "age,shoe"), "north.csv must have the columns every silo agreed on, got a source without 'shoe'; add them or agree on columns that every silo has"),
        "a column that only one silo has": Wrong(("fit", "north.csv", "everybody.csv", *EXACT, "-o", "new"), "everybody.csv must have only the columns every silo agreed on, got also 'site'; remove them, or leave them out with --extra drop"),
        "names here and none there": Wrong(("fit", "north.csv", "east.npy", *EXACT, "-o", "new"), "either every source or none must have column names, got names in north.csv and none in east.npy; name the columns of east.npy with --columns a,b,..."),
        "other widths": Wrong(("fit", "north.npy", "wide.npy", *EXACT, "-o", "new"), "sources without column names must have equally many columns, got 5 in north.npy and 4 in wide.npy; give every silo the same columns (--n-features for svmlight files)"),
        "the same name for two columns": Wrong(("fit", "twice.csv", *EXACT, "-o", "new"), "twice.csv must have distinct column names, got 'a' more than once; rename the columns"),
        "a column without a name": Wrong(("fit", "index.csv", *EXACT, "-o", "new"), "every column of index.csv must have a name, got none for column 1; name it, or leave it out (--drop '')"),
        "no columns": Wrong((*NORTH, *EXACT, "--columns", ","), "Invalid value for '--columns': it must be names with commas between them, got ','; see `fedpower fit --help`"),
        "a column to drop that is not there": Wrong((*NORTH, *EXACT, "--drop", "shoe"), "north.csv must have the columns to drop, got none named 'shoe'; correct --drop"),
        "groups by a column that is not there": Wrong(("fit", "everybody.csv", "--groups", "ward", *EXACT, "-o", "new"), "everybody.csv must have the column 'ward' to split by, got 'age', 'bmi', 'sbp', 'dbp', 'hdl' and 1 more; name one of its columns"),
        "scales for some columns": Wrong((*NORTH, *EXACT, "--scale-file", "scale.csv"), "scale.csv must give a number for every column, got none for 'bmi'; add the line bmi,NUMBER"),
        "a scale given twice": Wrong((*NORTH, *EXACT, "--scale-file", "twofold.csv"), "twofold.csv must name every column once, got 'age' twice; take one of the lines out"),
        "a scale of no column": Wrong((*NORTH, *EXACT, "--scale-file", "foreign.csv"), "foreign.csv must name columns of the fit and no others, got also 'shoe'; take that line out, or correct the name"),
        "a scale of zero": Wrong((*NORTH, *EXACT, "--scale-file", "zero.csv"), "scale must be positive in every column, got 0 for column 'bmi'; give public numbers"),
        "a scale that is missing": Wrong((*NORTH, *EXACT, "--scale-file", "missing.csv"), "scale must be finite in every column, got nan for column 'bmi'; give public numbers"),
        "too few scales": Wrong((*NORTH, *EXACT, "--scale-file", "three.npy"), "scale must have one value per column, got 3 for 5 columns; give it for the agreed columns"),
        "no such scales": Wrong((*NORTH, *EXACT, "--scale-file", "nowhere.csv"), "nowhere.csv must be a file that exists, got none there; check the path"),
    },
    "Types": {
        "a missing value": Wrong(("fit", "holes.csv", *EXACT, "-o", "new"), "column 'bmi' of holes.csv must hold finite numbers, got a missing value (empty, null or NaN) at row 7; fill it in or leave that row out"),
        "an infinite value": Wrong(("fit", "infinite.npy", *EXACT, "-o", "new"), "column 2 of infinite.npy must hold finite numbers, got an infinite value at row 1; fill it in or leave that row out"),
        "a column of text": Wrong(("fit", "everybody.csv", *EXACT, "-o", "new"), "column 'site' of everybody.csv must hold numbers, got text at row 1; drop the column (--drop 'site') or turn it into numbers"),
        "a column of dates": Wrong(("fit", "dates.csv", *EXACT, "-o", "new"), "column 'a' of dates.csv must hold numbers, got text at row 1; drop the column (--drop 'a') or turn it into numbers"),
        "an array of words": Wrong(("fit", "words.npy", *EXACT, "-o", "new"), "words.npy must hold real numbers, got non-numeric dtype str32; convert it to float64"),
        "complex numbers": Wrong(("fit", "complex.npy", *EXACT, "-o", "new"), "complex.npy must hold real numbers, got complex dtype complex128; convert it to float64"),
        "Python objects": Wrong(("fit", "objects.npy", *EXACT, "-o", "new"), "objects.npy must hold real numbers, got object dtype object; convert it to float64"),
        "integers beyond float64": Wrong(("fit", "large.npy", *EXACT, "-o", "new"), "column 2 of large.npy must hold integers that are exact in float64, below 2^53 in size, got a larger one at row 1; subtract a public number first, or leave the column out"),
        "one dimension": Wrong(("fit", "three.npy", *EXACT, "-o", "new"), "three.npy must be a 2-d array of rows by columns, got 1-d with shape (3,); reshape it so that each row is one record"),
        "three dimensions": Wrong(("fit", "cube.npy", *EXACT, "-o", "new"), "cube.npy must be a 2-d array of rows by columns, got 3-d with shape (2, 2, 2); reshape it so that each row is one record"),
    },
    "Budgets": {
        "no ledger there": Wrong(("fit", "east.csv", *PRIVATE, "--ledgers", ".", "-o", "new"), "silo 'east' must have a ledger, got none at east.ledger; create it with `fedpower budget init east.ledger --epsilon E --delta D`"),
        "another silo's ledger": Wrong(("fit", "east.csv", *PRIVATE, "--ledger", "east=north.ledger", "-o", "new"), "ledger north.ledger must belong to silo 'east', got that of 'north'; give each silo its own, or name the silo as its ledger does"),
        "another data set's ledger": Wrong((*NORTH, *PRIVATE, "--ledger", "north=heart.ledger", "--data-set", "lungs"), "ledger heart.ledger must belong to the data set 'lungs' of silo 'north', got that of data set 'heart'; give each its own ledger, or name the data as their ledger does"),
        "a data set that is not named": Wrong((*NORTH, *PRIVATE, "--ledger", "north=heart.ledger"), "ledger heart.ledger must belong to data without a name of silo 'north', got that of data set 'heart'; give each its own ledger, or name the data as their ledger does"),
        "rows that changed": Wrong(("fit", "booked=east.csv", *PRIVATE, "--ledgers", ".", "-o", "new"), "the rows of silo 'booked' must be those that its ledger knows as version '1', got others; declare a new version with --data-version, which is public and a new charge, or put the old rows back (nothing left the silo)"),
        "a version of a stranger": Wrong((*NORTH, *PRIVATE, "--ledgers", ".", "--data-version", "west=2"), "--data-version must be of silos of this fit, got one for 'west'; the silos are north"),
        "a version of two words": Wrong((*NORTH, *PRIVATE, "--ledgers", ".", "--data-version", "last spring"), "--data-version must be 1 to 64 letters, digits or . _ : + - and begin with a letter or a digit, got 'last spring'; call it 1, 2026-03 or the like"),
        "two versions for one silo": Wrong((*NORTH, *PRIVATE, "--ledgers", ".", "--data-version", 1, "--data-version", 2), "Invalid value for '--data-version': it must be NAME=VERSION, got '1'; see `fedpower fit --help`"),
        "a version on no ledger": Wrong((*NORTH, *PRIVATE, "--data-version", 2), "--data-version and --data-set must go with ledgers, which know rows by them, got one without; give ledgers, or leave it out"),
        "a ledger of nameless data": Wrong(("budget", "init", "new.ledger", "--data", "", "--epsilon", 1, "--delta", 1e-06), "the name of a data set must be 1 to 64 letters, digits or . _ : + - and begin with a letter or a digit, got ''; call it 1, 2026-03 or the like"),
        "a stranger's ledger": Wrong((*NORTH, *PRIVATE, "--ledger", "west=north.ledger"), "--ledger must name a silo of this fit, got 'west'; the silos are north"),
        "a ledger without a name": Wrong((*NORTH, *PRIVATE, "--ledger", "north.ledger"), "Invalid value for '--ledger': it must be NAME=PATH, got 'north.ledger'; see `fedpower fit --help`"),
        "a ledger for some silos": Wrong(("fit", "north.csv", "east.csv", *PRIVATE, "--ledger", "north=north.ledger", "-o", "new"), "every silo must have a ledger or none, got none for 'east'; add --ledger 'east=PATH', or give all of them in a folder with --ledgers"),
        "more than is left": Wrong((*NORTH, "-k", 2, "--epsilon", 3, "--normalize", "--ledgers", "."), "this release would spend epsilon=3 but silo 'north' has 2 left at delta=1e-06; ask for epsilon<=2, leave 'north' out or have its operator raise the cap"),
        "no privacy on a ledger": Wrong((*NORTH, *EXACT, "--ledgers", "."), "a ledger must be charged a finite epsilon, got --epsilon inf, which releases exact numbers; give a finite one, or leave the ledgers out"),
        "data as a ledger": Wrong((*NORTH, *PRIVATE, "--ledger", "north=secret.csv"), "ledger secret.csv must be whole but is damaged or no ledger; put back the file as it was last written, not an older copy that has forgotten charges"),
        "a ledger that all can read": Wrong(("fit", "open=north.csv", *PRIVATE, "--ledgers", ".", "-o", "new"), "ledger open.ledger must be private to its owner but has mode 0644; run `chmod 600 open.ledger`"),
        "the budget of nothing": Wrong(("budget", "nowhere.ledger"), "a ledger must exist before anything is released but there is none at nowhere.ledger; create it with `fedpower budget init`"),
        "the budget of data": Wrong(("budget", "secret.csv"), "ledger secret.csv must be whole but is damaged or no ledger; put back the file as it was last written, not an older copy that has forgotten charges"),
        "a negative what-if": Wrong(("budget", "north.ledger", "--what-if=-1"), "epsilon must be positive and finite, got -1; a ledger cannot account for releases without noise"),
        "a ledger without delta": Wrong(("budget", "init", "new.ledger", "--epsilon", 1), "Missing option '--delta'; see `fedpower budget init --help`"),
        "a ledger made twice": Wrong(("budget", "init", "north.ledger", "--epsilon", 9, "--delta", 1e-06), "a ledger is never overwritten but north.ledger exists already; open it, or choose another path"),
        "a ledger without an end": Wrong(("budget", "init", "new/x.ledger", "--epsilon", "inf", "--delta", 1e-06), "epsilon must be positive and finite, got inf; a ledger cannot account for releases without noise"),
        "a cap raised without a reason": Wrong(("budget", "cap", "north.ledger", "--epsilon", 9, "--delta", 1e-06), "Missing option '--reason'; see `fedpower budget cap --help`"),
        "a cap raised for a blank": Wrong(("budget", "cap", "north.ledger", "--epsilon", 9, "--delta", 1e-06, "--reason", " "), "a change of cap must have a reason on record, got none; give --reason"),
    },
    "Results": {
        "no result there": Wrong(("transform", "nowhere", "north.csv"), "nowhere must be a folder that `fedpower fit` wrote, got nothing there; check the path"),
        "a folder of something else": Wrong(("transform", "occupied", "north.csv"), "occupied must be a folder that `fedpower fit` wrote, got one without components.npz; check the path"),
        "half of the components": Wrong(("transform", "torn", "north.csv"), "torn/components.npz must be as `fedpower fit` wrote it, got a damaged or foreign file; fit again or bring back the folder"),
        "a record that is no JSON": Wrong(("transform", "garbled", "north.csv"), "garbled/run.json must be as `fedpower fit` wrote it, got a damaged or foreign file; fit again or bring back the folder"),
        "a result of a later version": Wrong(("transform", "later", "north.csv"), "later must be a result of format 'fedpower-result/1', got 'fedpower-result/9'; read it with the fedpower that wrote it"),
        "a result without components": Wrong(("transform", "bare", "north.csv"), "bare must be a folder that `fedpower fit` wrote, got one without components.npz; check the path"),
        "rows of other columns": Wrong(("transform", "model", "dates.csv"), "dates.csv must have every column of the fit, got none named 'age' and 4 more; add it, or fit without it"),
        "a report of nothing": Wrong(("report", "nowhere"), "nowhere must be a folder that `fedpower fit` wrote, got nothing there; check the path"),
        "a report of half a result": Wrong(("report", "torn"), "torn/components.npz must be as `fedpower fit` wrote it, got a damaged or foreign file; fit again or bring back the folder"),
        "an export to an unknown format": Wrong(("export", "model", "--to", "fax", "-o", "out"), "Invalid value for '--to': 'fax' is not one of 'csv', 'parquet', 'plink', 'anndata', 'onnx'; see `fedpower export --help`"),
        "an export of a damaged record": Wrong(("export", "unsaid", "--to", "parquet", "-o", "out"), "unsaid/run.json must be as `fedpower fit` wrote it, got none or another kind of privacy; fit again or bring back the folder"),
        "JSON and scores at once": Wrong(("transform", "model", "north.csv", "--json"), "--json must go with -o, got none: the scores themselves are printed then; name a file"),
        "scores without rows": Wrong(("export", "model", "--to", "plink", "-o", "out"), "--rows must go with --to plink and --to anndata, got --to plink without; name the file of the rows"),
        "compared with nothing": Wrong(("compare", "nowhere", "nowhere"), "nowhere must be a folder that `fedpower fit` wrote, got nothing there; check the path"),
        "compared with data": Wrong(("compare", "north.csv", "north.csv"), "north.csv must be a folder that `fedpower fit` wrote, got a file; check the path"),
        "compared with other arrays": Wrong(("compare", "other.npz", "other.npz"), "other.npz must hold an array 'components' (k×d) or 'basis' (d×k), got weights; save one of them"),
        "compared with dependent directions": Wrong(("compare", "ones.npy", "ones.npy"), "ones.npy must hold independent directions, got dependent ones of shape (4, 2); give a basis"),
    },
    "Studies": {
        "a study without a name": Wrong(("study", "init", "new.toml"), "Missing option '--name'; see `fedpower study init --help`"),
        "a study of a nameless column": Wrong(("study", "init", "new.toml", "--name", "heart", "--silos", "a,b", "--columns-of", "index.csv", "-k", 1, "--epsilon", 1, "--normalize"), "every column of index.csv must have a name, got none for column 1; name it, or leave it out by listing the others with --columns"),
        "no such study": Wrong(("study", "check", "nowhere.toml"), "the study file must exist, got no file at nowhere.toml; check the path"),
        "a study that is no TOML": Wrong(("study", "check", "bad.toml"), "the study file bad.toml must be TOML, got something else (Invalid value (at end of document)); correct that line"),
        "kits of no study": Wrong(("federation", "init", "nowhere.toml", "-o", "kits"), "the study file must exist, got no file at nowhere.toml; check the path"),
        "a signature without an authority": Wrong(("federation", "sign", "nowhere", "north.csr"), "nowhere must be an authority made by `fedpower federation init`, got nothing there; give the folder it wrote"),
        "a coordinator without a kit": Wrong(("coordinator", "nowhere"), "...nowhere must be a kit made by `fedpower federation request`, got nothing there; give the folder it wrote"),
        "a silo without its file": Wrong(("silo", "nowhere", "nowhere.toml"), "the silo file must exist, got no file at nowhere.toml; check the path"),
        "a run of no study": Wrong(("run", "nowhere.toml"), "the study file must exist, got no file at nowhere.toml; check the path"),
        "a key that is data": Wrong(("identity", "show", "secret.csv"), "identity secret.csv must hold an Ed25519 private key in PEM, got something else; make one with `fedpower identity new`"),
    },
    "Disks and permissions": {
        "a folder that holds other files": Wrong(("fit", "north.csv", *EXACT, "-o", "occupied"), "occupied must be new or empty, got a folder that holds 'thesis.tex'; name another with -o"),
        "other files, by force": Wrong(("fit", "north.csv", *EXACT, "-o", "occupied", "--force"), "occupied must hold an earlier result and nothing else to be replaced, got 'thesis.tex' in it; name another with -o"),
        "a file where the folder should be": Wrong(("fit", "north.csv", *EXACT, "-o", "north.csv"), "north.csv must be a folder, got a file there; name another with -o"),
        "a file that may not be read": Wrong(("fit", "sealed.csv", *EXACT, "-o", "new"), "sealed.csv must be readable, got no permission; ask its owner for it", under="no permission"),
        "a folder that may not be written": Wrong(("fit", "north.csv", *EXACT, "-o", "shut/new"), "shut/new must be in a folder that can be written, got none (Permission denied); name another with -o", under="no permission"),
        "scores where none may be written": Wrong(("transform", "model", "north.csv", "-o", "shut/scores.csv"), "shut/scores.csv must be in a folder that can be written, got none (Permission denied); name another with -o", under="no permission"),
        "a study where none may be written": Wrong(("study", "init", "shut/study.toml", "--name", "heart", "--silos", "a,b", "--columns", "x,y", "-k", 1, "--epsilon", 1, "--normalize"), "shut/study.toml must be in a folder that can be written, got none (Permission denied); give another PATH", under="no permission"),
        "a report where none may be written": Wrong(("report", "sealed"), "sealed/report.html must be in a folder that can be written, got none (Permission denied); ask its owner for leave to write there", under="no permission"),
        "a ledger where none may be made": Wrong(("budget", "init", "shut/new.ledger", "--epsilon", 1, "--delta", 1e-06), "a ledger must be created in a writable folder but shut/new.ledger cannot be (Permission denied); choose another path", under="no permission"),
        "a full disk for the result": Wrong(("fit", "north.csv", *EXACT, "-o", "new"), "a file must have room on its disk, got none left (File too large); make room and run the command again: nothing half-written was kept, and no charge is made twice", under="full disk"),
        "a full disk for the scores": Wrong(("transform", "model", "north.csv", "-o", "scores.csv"), "a file must have room on its disk, got none left (File too large); make room and run the command again: nothing half-written was kept, and no charge is made twice", under="full disk"),
        "a full disk for the ledger": Wrong(("fit", "north.csv", *PRIVATE, "--ledgers", ".", "-o", "new"), "silo 'north' refused: the silo could not answer; its operator's log says why", under="full disk"),
    },
}
# fmt: on

TEXTS = {
    "notes.txt": "notes",
    "scale.csv": "age,1\n",
    "secret.csv": "a,b\n1,2\n",
    "empty.csv": "",
    "header.csv": "age,bmi,sbp,dbp,hdl\n",
    "ragged.csv": "a,b\n1,2\n3\n",
    "twice.csv": "a,a\n1,2\n3,4\n",
    "twofold.csv": "age,1\nbmi,1\nage,2\nsbp,1\ndbp,1\nhdl,1\n",
    "foreign.csv": "age,1\nbmi,1\nsbp,1\ndbp,1\nhdl,1\nshoe,1\n",
    "zero.csv": "age,1\nbmi,0\nsbp,1\ndbp,1\nhdl,1\n",
    "missing.csv": "age,1\nbmi,nan\nsbp,1\ndbp,1\nhdl,1\n",
    "index.csv": ",a,b\n0,1,2\n1,3,5\n",
    "tabs.csv": "a\tb\n1\t2\n3\t4\n",
    "semicolon.csv": "a;b\n1,5;2\n3;4\n",
    "dates.csv": "a,b\n2020-01-01,2\n2020-01-02,4\n",
    "bad.svm": "1 1:x\n",
    "bad.toml": "silo = [\n",
}
ARRAYS = {
    "three.npy": np.ones(3),
    "ones.npy": np.ones((4, 2)),
    "words.npy": np.array([["a", "b"]]),
    "cube.npy": np.ones((2, 2, 2)),
    "complex.npy": np.ones((3, 3), complex),
    "objects.npy": np.array([[1, None]], dtype=object),
    "infinite.npy": np.array([[1, np.inf], [1, 2]]),
    "one.npy": np.ones((1, 5)),
    "large.npy": np.array([[1, 2**53 + 1], [3, 4]]),
    "wide.npy": np.ones((3, 4)),
}


def prepare(folder: Path) -> None:
    """Write hospitals, and beside them all that can be wrong with a file."""
    write_hospitals(folder)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    for name, array in ARRAYS.items():
        np.save(folder / name, array)
    np.savez(folder / "other.npz", weights=np.ones(3))
    (folder / "junk.csv").write_bytes(bytes(range(256)) * 4)
    whole = (folder / "south.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "secret.csv").chmod(0o600)
    (folder / "occupied").mkdir()
    (folder / "occupied" / "thesis.tex").write_text("years of work")
    for name in ("north", "open"):
        succeed("budget", "init", f"{name}.ledger", "--epsilon", 2, "--delta", 1e-6)
    (folder / "open.ledger").chmod(0o644)
    cap = ("--epsilon", 2, "--delta", 1e-6)
    succeed("budget", "init", "heart.ledger", "--silo", "north", "--data", "heart", *cap)
    succeed("budget", "init", "booked.ledger", *cap)
    succeed("fit", "booked=north.csv", *PRIVATE, "--ledgers", ".", "-o", "booked")
    succeed("fit", "north.csv", *EXACT, "-o", "model")
    for name in ("torn", "garbled", "later", "bare", "unsaid", "sealed"):
        shutil.copytree("model", name)
    torn = folder / "torn" / "components.npz"
    torn.write_bytes(torn.read_bytes()[:300])
    (folder / "garbled" / "run.json").write_text("{")
    later = folder / "later" / "run.json"
    later.write_text(later.read_text().replace("fedpower-result/1", "fedpower-result/9"))
    (folder / "bare" / "components.npz").unlink()
    unsaid = folder / "unsaid" / "run.json"
    unsaid.write_text(json.dumps({**json.loads(unsaid.read_text()), "privacy": None}))
    (folder / "sealed").chmod(0o500)
    (folder / "sealed.csv").write_text("a,b\n1,2\n3,4\n")
    (folder / "sealed.csv").chmod(0)
    (folder / "shut").mkdir(mode=0o500)
