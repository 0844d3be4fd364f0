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

from workbooks import write_xlsx

NORTH = ("fit", "north.csv", "-o", "new")
NETWORK = ("communities", "edges.csv", "-o", "new", "-k", 2, "--epsilon", 1)
CLINIC = ("fit", "clinic.csv", "-o", "new", "-k", 1, "--epsilon", "inf", "--codebook")
GAMES = ("release", "games.csv", "-o", "new", "--epsilon", 1, "--codebook")
STUDY = ("study", "init", "new.toml", "--name", "heart", "--silos", "a,b", "-k", 1, "--epsilon", 1)


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
    "Persons": {
        "a unit that is no column": Wrong((*NORTH, *PRIVATE, "--unit", "patient"), "north.csv must have the column 'patient' that says whose each row is, got 'age', 'bmi', 'sbp', 'dbp', 'hdl'; correct --unit, or add the column"),
        "an empty unit": Wrong((*NORTH, *PRIVATE, "--unit", ""), "--unit must be the name of the column that says whose each row is, got ''; give e.g. 'patient_id'"),
        "a unit of an array": Wrong(("fit", "wide.npy", "-o", "new", *PRIVATE, "--unit", "patient"), "wide.npy must be a table with named columns to have --unit patient, got rows without; give a CSV, Parquet, Feather or Arrow file, a data frame or a query"),
        "a row without an id": Wrong(("fit", "visits.csv", "-o", "new", *PRIVATE, "--unit", "patient"), "column 'patient' of visits.csv must say in every row whose it is, got a missing id at row 2; fill it in or leave that row out"),
        "nothing beside the ids": Wrong(("fit", "ids.csv", "-o", "new", *PRIVATE, "--unit", "patient"), "ids.csv must have a feature beside the column 'patient', which only says whose each row is, got none; add one"),
        "rows per unit without a unit": Wrong((*NORTH, *PRIVATE, "--rows-per-unit", 3), "--rows-per-unit must go with --unit, got 3 without; name the column that says whose each row is"),
        "no rows per unit": Wrong((*NORTH, *PRIVATE, "--unit", "age", "--rows-per-unit", 0), "--rows-per-unit must be a whole number of at least 1, got 0; give one"),
        "one silo without the unit": Wrong(("fit", "visits.csv", "north.csv", "-o", "new", *PRIVATE, "--unit", "patient"), "north.csv must have the column 'patient' that says whose each row is, got 'age', 'bmi', 'sbp', 'dbp', 'hdl'; correct --unit, or add the column"),
        "a study whose unit is a column": Wrong(("study", "init", "new.toml", "--name", "heart", "--silos", "a,b", "--columns", "age,patient", "--unit", "patient", "-k", 1, "--epsilon", 1, "--row-norm", 1), "--unit must be no feature, for it only says whose each row is, got 'patient' among the columns too; leave it out of them"),
        "a study of a file without the unit": Wrong(("study", "init", "new.toml", "--name", "heart", "--silos", "a,b", "--columns-of", "north.csv", "--unit", "patient", "-k", 1, "--epsilon", 1, "--row-norm", 1), "north.csv must have the column 'patient' that says whose each row is, got 'age', 'bmi', 'sbp', 'dbp', 'hdl'; correct --unit, or add the column"),
        "a plan for persons of an array": Wrong(("plan", "wide.npy", "-k", 1, "--epsilon", 1, "--unit", "patient"), "wide.npy must be a table with named columns to have --unit patient, got rows without; give a CSV, Parquet, Feather or Arrow file, a data frame or a query"),
    },
    "Networks": {
        "edges without their nodes": Wrong(NETWORK, "an edge list must be given the names of all nodes, which are public, for which of them have edges is not, got edges.csv without; give --nodes"),
        "an edge to somebody else": Wrong((*NETWORK, "--nodes", "few.txt"), "every edge of edges.csv must be between two of the public nodes, got another name in row 2; mend it, or add the node to --nodes"),
        "weights without a maximum": Wrong(("communities", "heavy.csv", *NETWORK[2:], "--nodes", "nodes.txt"), "edges of heavy.csv must have the weights 0 or 1 where no public maximum is given, got others, and noise would be too small for them; give --edge-weight, at which weights are capped"),
        "a maximum that is no weight": Wrong(("communities", "heavy.csv", *NETWORK[2:], "--nodes", "nodes.txt", "--edge-weight", "1e300"), "--edge-weight must be a number from 1e-100 to 1e100, got 1e+300; give the public maximum of an edge's weight"),
        "a table for a network": Wrong(("communities", "north.csv", *NETWORK[2:], "--nodes", "nodes.txt"), "north.csv must be an edge list with the columns source and target, and perhaps weight and layer, got 'age', 'bmi', 'sbp', 'dbp', 'hdl'; leave others out"),
        "labels of somebody else": Wrong((*NETWORK, "--nodes", "nodes.txt", "--labels", "odd.csv"), "--labels must be of nodes of the networks, got another, 'zoe'; correct it"),
        "as many communities as nodes": Wrong(("communities", "edges.csv", "-o", "new", "-k", 4, "--epsilon", 1, "--nodes", "nodes.txt"), "communities must be a whole number from 1 to the 4 nodes less one, got 4; choose one"),
        "communities of a table": Wrong(("derive", "kept", "communities", "-k", 2), "communities must be found from networks, got a moment of tables; release it with `fedpower communities`, or FedMoment(network='edge')"),
        "a study of a network without nodes": Wrong((*STUDY, "--network", "edge"), "--network and --nodes must go together, got one of them; say what is protected and name the nodes"),
    },
    "Privacy parameters": {
        "epsilon zero": Wrong((*NORTH, "-k", 2, "--epsilon", 0, "--normalize"), "Invalid value for '--epsilon': it must be a number above 0, got '0'; 1 is usual, and inf means no privacy; see `fedpower fit --help`"),
        "epsilon nan": Wrong((*NORTH, "-k", 2, "--epsilon", "nan", "--normalize"), "Invalid value for '--epsilon': it must be a number above 0, got 'nan'; 1 is usual, and inf means no privacy; see `fedpower fit --help`"),
        "epsilon in words": Wrong((*NORTH, "-k", 2, "--epsilon", "small", "--normalize"), "Invalid value for '--epsilon': it must be a number above 0, got 'small'; 1 is usual, and inf means no privacy; see `fedpower fit --help`"),
        "epsilon too large": Wrong((*NORTH, "-k", 2, "--epsilon", 100, "--normalize"), "--epsilon must be from 0.0001 to 60, or inf for no privacy, got 100; a larger one promises nothing"),
        "epsilon too small": Wrong((*NORTH, "-k", 2, "--epsilon", 1e-9, "--normalize"), "--epsilon must be from 0.0001 to 60, or inf for no privacy, got 1e-09; a smaller one leaves nothing but noise"),
        "most of epsilon for scores": Wrong((*NORTH, "-k", 2, "--epsilon", 1, "--normalize", "--scores-epsilon", 0.8), "--scores-epsilon must be at most half of --epsilon 1, of which it is a part, got 0.8; give e.g. 0.1"),
        "private scores of an exact fit": Wrong((*NORTH, "-k", 2, "--epsilon", "inf", "--scores-epsilon", 0.1), "--scores-epsilon must be inf with --epsilon inf, where nothing is private, got 0.1; give a finite epsilon, or --scores-epsilon inf"),
        "scores on one component": Wrong((*NORTH, "-k", 1, "--epsilon", 1, "--normalize", "--scores-epsilon", 0.1), "--scores-epsilon must go with two components or more, on which scores are counted, got one; give -k 2, or leave it out"),
        "scores beside the paper's noise": Wrong((*NORTH, "-k", 2, "--epsilon", 1, "--normalize", "--noise", "paper", "--scores-epsilon", 0.1), "--scores-epsilon must go without --noise paper, whose printed noise leaves nothing of its epsilon to scores, got both; choose --noise step"),
        "next to no epsilon for scores": Wrong((*NORTH, "-k", 2, "--epsilon", 1, "--normalize", "--scores-epsilon", 0.00001), "--scores-epsilon must be at least 0.0001, got 1e-05: less leaves nothing but noise"),
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
        "exact secure sums": Wrong(("fit", "north.csv", "south.parquet", "east.csv", "-k", "2", "--epsilon", "inf", "--aggregation", "secure", "-o", "new"), "--aggregation secure must have a finite epsilon, got epsilon=inf; exact sums under masks can be made to reveal one silo, so use --aggregation plain or a finite epsilon"),
        "a secure sum of steps": Wrong(("fit", "north.csv", "south.parquet", "east.csv", *PRIVATE, "--aggregation", "secure", "--noise", "step", "-o", "new"), "--aggregation secure must go with --noise moment, got 'step', of which each step is one more sum that could be told apart from the others; leave noise alone, or set it to 'moment' for wide rows"),
        "an analysis of no moment": Wrong(("derive", "none", "correlate"), "none must be a folder that `fedpower release` wrote, got nothing there; check the path"),
        "an audit of nothing": Wrong(("audit", "--epsilon", "inf"), "an audit must put a finite epsilon to the test, got inf, no promise at all; give one"),
    },
    "Components and iterations": {
        "no components": Wrong((*NORTH, "-k", 0, "--epsilon", "inf"), "Invalid value for '-k': it must be a number of components such as 4, a fraction of variance such as 0.9, or auto for as many as are determined, got '0'; see `fedpower fit --help`"),
        "more components than columns": Wrong((*NORTH, "-k", 6, "--epsilon", "inf"), "-k must be a whole number from 1 to the smaller of rows and columns, 5, a fraction between 0 and 1 or 'auto', got 6; choose one of these"),
        "one and a half components": Wrong((*NORTH, "-k", 1.5, "--epsilon", "inf"), "Invalid value for '-k': it must be a number of components such as 4, a fraction of variance such as 0.9, or auto for as many as are determined, got '1.5'; see `fedpower fit --help`"),
        "k by its old name": Wrong((*NORTH, "-k", "noise", "--epsilon", 1, "--row-norm", 10), "Invalid value for '-k': it must be a number of components such as 4, a fraction of variance such as 0.9, or auto for as many as are determined, got 'noise'; it is now called auto; see `fedpower fit --help`"),
        "k of noised steps": Wrong((*NORTH, "-k", "auto", "--epsilon", 1, "--row-norm", 10, "--noise", "step"), "-k auto must go with --noise moment or --epsilon inf, got --noise step, whose releases do not show the whole spectrum; give a number of components"),
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
        "a folder": Wrong(("fit", ".", *EXACT, "-o", "new"), ". must hold the parts of one table and nothing else, got ... and ...; move the others out, or give a pattern in quotes such as '...'"),
        "an unknown ending": Wrong(("fit", "notes.txt", *EXACT, "-o", "new"), "notes.txt must end in one of .csv, .csv.gz, .tsv, .tsv.gz, .parquet, .feather, .arrow, .ndjson, .jsonl, .xlsx, .toml, .npy, .npz, .h5ad, .bed, .pgen, .svm, .svm.gz, .libsvm, .libsvm.gz, .svmlight, .svmlight.gz, got '.txt'; rename or convert the file"),
        "an empty file": Wrong(("fit", "empty.csv", *EXACT, "-o", "new"), "empty.csv must have a line of column names and rows, got an empty file; write it again"),
        "a header without rows": Wrong(("fit", "header.csv", *EXACT, "-o", "new"), "header.csv must have at least one row, got none; leave this silo out"),
        "a row that is too short": Wrong(("fit", "ragged.csv", *EXACT, "-o", "new"), "column 'b' of ragged.csv must hold finite numbers, got a missing value (empty, null or NaN) at row 2; fill it in or give the column a rule for missing cells in a code book"),
        "bytes that are no text": Wrong(("fit", "junk.csv", *EXACT, "-o", "new"), "junk.csv must be delimited text in UTF-8, got one that cannot be parsed to its end; write it again as plain CSV, or say with --encoding how it is written, e.g. as cp1252"),
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
        "an unknown column": Wrong((*NORTH, *EXACT, "--columns", "age,shoe"), "north.csv must have the columns every silo agreed on, got a source without 'shoe'; rename the column that holds it (--rename OLD=NEW), or leave it out of the fit"),
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
    "Rules of tables": {
        "levels that were not filled in": Wrong((*CLINIC, "unfilled.toml"), "levels in the rule of 'sex' in unfilled.toml must be a word or more, got 0; fill in those that all silos agree on, and never read them from rows"),
        "a level twice": Wrong((*CLINIC, "doubled.toml"), "levels in the rule of 'sex' in doubled.toml must be different words, got one twice; take one of them out"),
        "other among the levels": Wrong((*CLINIC, "others.toml"), "levels in the rule of 'sex' in others.toml must not have 'other' among them, which is added for all words that are not listed; leave it out"),
        "levels without a list": Wrong((*CLINIC, "unlisted.toml"), "the rule of 'sex' in unlisted.toml must list its levels, got none; write levels = ['low', 'high'] with the words that all silos agree on"),
        "an unknown kind of column": Wrong((*CLINIC, "unkind.toml"), "the rule of 'age' in unkind.toml must have a kind, one of number, levels, ordered, yes/no, date, rating, person, item, comparison, drop, or levels, got 'integer'; choose one"),
        "a misspelt key of a rule": Wrong((*CLINIC, "slip.toml"), "the rule of 'age' in slip.toml must have only the keys kind, range, missing, indicator, missing_words for a column of kind 'number', got 'rnage'; leave it out"),
        "a rule's range from above": Wrong((*CLINIC, "backwards.toml"), "range in the rule of 'age' in backwards.toml must be two finite numbers, the smaller first, got [120, 0]; write for instance range = [0, 120]"),
        "a range of levels": Wrong((*CLINIC, "ranged.toml"), "the rule of 'sex' in ranged.toml must have only the keys kind, levels, missing, indicator, missing_words for a column of kind 'levels', got 'range'; leave it out"),
        "an indicator without a value": Wrong((*CLINIC, "marked.toml"), "the rule of 'age' in marked.toml must say what stands for a missing cell beside its indicator, got no missing; write missing = 'offset' or a number"),
        "a word for a missing number": Wrong((*CLINIC, "often.toml"), "missing in the rule of 'age' in often.toml must be 'offset' or a number, got 'often'; choose one"),
        "a missing value outside the range": Wrong((*CLINIC, "beyond.toml"), "missing in the rule of 'age' in beyond.toml must lie in its range from 0 to 120, got 999; choose one within"),
        "a missing level that is none": Wrong((*CLINIC, "stranger.toml"), "missing in the rule of 'sex' in stranger.toml must be one of F, M, other, and without an indicator, which is a level of its own, got 'X'; choose one of the two"),
        "a missing level and an indicator": Wrong((*CLINIC, "both.toml"), "missing in the rule of 'sex' in both.toml must be one of F, M, other, and without an indicator, which is a level of its own, got 'F'; choose one of the two"),
        "a date without an origin": Wrong((*CLINIC, "undated.toml"), "origin in the rule of 'seen' in undated.toml must be the day that counts as 0, as in 2000-01-31, got None; agree on one"),
        "an origin written otherwise": Wrong((*CLINIC, "misdated.toml"), "origin in the rule of 'seen' in misdated.toml must be the day that counts as 0, as in 2000-01-31, got '31.1.2000'; agree on one"),
        "an unknown unit of time": Wrong((*CLINIC, "fortnight.toml"), "unit in the rule of 'seen' in fortnight.toml must be one of seconds, minutes, hours, days, weeks, months, years, got 'fortnights'; choose one"),
        "one ordered level": Wrong((*CLINIC, "single.toml"), "ordered in the rule of 'grade' in single.toml must be two words or more, got 1; fill in those that all silos agree on, and never read them from rows"),
        "a rule that is a number": Wrong((*CLINIC, "number.toml"), "the rule of 'age' in number.toml must be a table, a kind or a list of levels, got int; write for instance { kind = 'number' }"),
        "missing words that are no list": Wrong((*CLINIC, "wordless.toml"), "missing_words in the rule of 'age' in wordless.toml must be a list of words, got 'NA'; list them"),
        "an indicator in words": Wrong((*CLINIC, "perhaps.toml"), "indicator in the rule of 'age' in perhaps.toml must be true or false, got 'yes'; change it"),
        "rules that drop everything": Wrong((*CLINIC, "all-dropped.toml"), "the rules in all-dropped.toml must keep a column at least, got none; write one per line under [rules]"),
        "a rule of no column": Wrong((*CLINIC, "height.toml"), "rules must be of columns that the tables have, got one for 'height', which none has; correct the name, or leave the rule out"),
        "rules outside their table": Wrong((*CLINIC, "outside.toml"), "the code book outside.toml must have only the keys format, rules, bound, cost, clipped, column, got 'sex'; write rules under [rules]"),
        "rules that are no table": Wrong((*CLINIC, "flat.toml"), "the rules in flat.toml must be a table from columns to rules, got int; write for instance sex = { levels = ['F', 'M'] }"),
        "a code book of a later format": Wrong((*CLINIC, "later.toml"), "later.toml must be a code book of format 'fedpower-codebook/2', got 'fedpower-codebook/9'; make one with `fedpower prepare` or `fedpower inspect`"),
        "a code book of nothing": Wrong((*CLINIC, "bare.toml"), "the code book bare.toml must have a bound, and offset, scale, low, high for every column, got one without; correct it, or make it again with `fedpower prepare`"),
        "rules for rows without names": Wrong(("fit", "north.npy", "-o", "new", *EXACT, "--codebook", "draft.toml"), "north.npy must be a table with named columns to have rules, got rows without them; give a CSV, Parquet or Feather file, a data frame or a query, or a code book without rules"),
        "a missing cell without a rule": Wrong(("fit", "gap.csv", "-o", "new", "-k", 1, "--epsilon", "inf", "--codebook", "gap.toml"), "column 'a' of gap.csv must have a rule for its missing cells, got nothing at row 2; give it missing = \"offset\" or a value in the code book, or drop it"),
        "a word that is no ordered level": Wrong((*CLINIC, "grade.toml"), "column 'grade' of clinic.csv must hold its ordered levels and nothing else, got other words at row 3; agree on a place for it among the levels, or list it in missing_words"),
        "a word that is neither yes nor no": Wrong((*CLINIC, "smoker.toml"), "column 'smoker' of clinic.csv must hold yes or no (true or false, 1 or 0) and nothing else, got other words at row 3; give it levels, or list the word in missing_words"),
        "a cell that is no date": Wrong((*CLINIC, "seen.toml"), "column 'seen' of clinic.csv must hold dates written as 2000-01-31, or 2000-01-31 23:59, got something else at row 3; give its rule the format that they have, or list the word in missing_words"),
        "a word that no rule calls missing": Wrong((*CLINIC, "text.toml"), "column 'smoker' of clinic.csv must hold numbers, got text at row 1; name what means missing with missing_words, give it a rule, or drop it"),
        "a feature that is a column already": Wrong(("fit", "clash.csv", "-o", "new", "-k", 1, "--epsilon", "inf", "--codebook", "clash.toml"), "clash.csv must have distinct column names, got 'sex=F' more than once; rename the columns"),
        "a draft without a bound": Wrong(("fit", "clinic.csv", "-o", "new", "-k", 1, "--epsilon", 1, "--codebook", "draft.toml", "--solver", "krylov"), "a fit with epsilon=1 that is given centres, scales or settings of its own must know a public bound on the norm of a row, got none; give --row-norm B, --normalize or --codebook, or leave all of them out to have them found privately"),
        "preparation of what is prepared": Wrong(("prepare", "north.csv", "--epsilon", 1, "-o", "new", "--codebook", "full.toml"), "preparation must be given nothing but a finite --epsilon and ranges, got more; leave out --row-norm, --normalize, --codebook, public centres and scales, and settings of other solvers"),
        "a study of columns without rules": Wrong((*STUDY, "--codebook", "draft.toml", "--columns", "bmi,sbp"), "the columns must be those that the code book has rules for, got none named 'sex'; add it, or drop it in draft.toml"),
        "a study with a draft that is not filled in": Wrong((*STUDY, "--codebook", "unfilled.toml"), "levels in the rule of 'sex' in unfilled.toml must be a word or more, got 0; fill in those that all silos agree on, and never read them from rows"),
        "an item that is not listed": Wrong((*GAMES, "trees.toml"), "columns 'winner' and 'loser' of games.csv must name items of the public list and nothing else, got others at row 2; add them to the items at all silos, or leave those rows out"),
        "an item against itself": Wrong(("release", "alone.csv", *GAMES[2:], "yews.toml"), "columns 'winner' and 'loser' of alone.csv must name two different items, got one twice at row 2; leave that row out: it compares nothing"),
        "comparisons without a loser": Wrong((*GAMES, "unopposed.toml"), "the rule of 'winner' in unopposed.toml must say which column has the item that lost, got no against; write for instance against = 'loser'"),
        "a margin without a range": Wrong((*GAMES, "boundless.toml"), "the rule of 'winner' in boundless.toml must have margin and range together, so that one comparison counts for no more than is public, got only margin; write for instance margin = 'points', range = [0, 30]"),
        "comparisons and a column beside them": Wrong((*GAMES, "crowded.toml"), "the rules in crowded.toml must have comparisons and no other column beside them, got 'points'; drop it, or name it in the rule of the comparisons"),
        "a bound on comparisons": Wrong((*GAMES, "yews.toml", "--row-norm", 1), "--row-norm must be left alone with --codebook, which says it already, got both; leave one of them out"),
        "inspecting nothing": Wrong(("inspect",), "Missing argument 'FILE...'; see `fedpower inspect --help`"),
        "inspecting rows without names": Wrong(("inspect", "north.npy"), "north.npy must be a table with named columns to be inspected, got rows without them; give a CSV, Parquet or Feather file, or a query"),
        "inspecting a file that is not there": Wrong(("inspect", "nowhere.csv"), "nowhere.csv must be a file that exists, got none there; check the path"),
        "a draft over another file": Wrong(("inspect", "north.csv", "--draft", "notes.txt"), "notes.txt must not exist yet, got a file there; name another file or pass --force"),
    },
    "Types": {
        "a missing value": Wrong(("fit", "holes.csv", *EXACT, "-o", "new"), "column 'bmi' of holes.csv must hold finite numbers, got a missing value (empty, null or NaN) at row 7; fill it in or give the column a rule for missing cells in a code book"),
        "an infinite value": Wrong(("fit", "infinite.npy", *EXACT, "-o", "new"), "column 2 of infinite.npy must hold finite numbers, got an infinite value at row 1; fill it in or leave that row out"),
        "a column of text": Wrong(("fit", "everybody.csv", *EXACT, "-o", "new"), "column 'site' of everybody.csv must hold numbers, got text at row 1; drop the column (--drop 'site'), or turn it into numbers, by a rule in a code book for instance"),
        "a column of dates": Wrong(("fit", "dates.csv", *EXACT, "-o", "new"), "column 'a' of dates.csv must hold numbers, got text at row 1; drop the column (--drop 'a'), or turn it into numbers, by a rule in a code book for instance"),
        "an array of words": Wrong(("fit", "words.npy", *EXACT, "-o", "new"), "words.npy must hold real numbers, got non-numeric dtype str32; convert it to float64"),
        "complex numbers": Wrong(("fit", "complex.npy", *EXACT, "-o", "new"), "complex.npy must hold real numbers, got complex dtype complex128; convert it to float64"),
        "Python objects": Wrong(("fit", "objects.npy", *EXACT, "-o", "new"), "objects.npy must hold real numbers, got object dtype object; convert it to float64"),
        "integers beyond float64": Wrong(("fit", "large.npy", *EXACT, "-o", "new"), "column 2 of large.npy must hold integers that are exact in float64, below 2^53 in size, got a larger one at row 1; subtract a public number first, or leave the column out"),
        "one dimension": Wrong(("fit", "three.npy", *EXACT, "-o", "new"), "three.npy must be a 2-d array of rows by columns, got 1-d with shape (3,); reshape it so that each row is one record"),
        "three dimensions": Wrong(("fit", "cube.npy", *EXACT, "-o", "new"), "cube.npy must be a 2-d array of rows by columns, got 3-d with shape (2, 2, 2); reshape it so that each row is one record"),
    },
    "Text, folders and sheets": {
        "commas and semicolons": Wrong(("fit", "doubt.csv", *EXACT, "-o", "new"), "the first line of doubt.csv must show what separates its cells, got commas and semicolons in it; say which it is with --separator"),
        "points and commas in numbers": Wrong(("fit", "mixed.csv", *EXACT, "-o", "new"), "numbers in mixed.csv must show which sign their decimals begin with, got both points and commas; say which it is with --decimal"),
        "thousands or decimals": Wrong(("fit", "thousands.csv", *EXACT, "-o", "new"), "numbers in thousands.csv must show which sign their decimals begin with, got commas that may part thousands; say which it is with --decimal"),
        "text in another encoding": Wrong(("fit", "umlaut.csv", *EXACT, "-o", "new"), "umlaut.csv must be delimited text in UTF-8, got one that cannot be parsed to its end; write it again as plain CSV, or say with --encoding how it is written, e.g. as cp1252"),
        "a separator that is nowhere": Wrong((*NORTH, *EXACT, "--separator", ";"), "the first line of north.csv must have the separator between its names, got ';' nowhere in it; correct --separator, or leave it out"),
        "a letter for a separator": Wrong((*NORTH, *EXACT, "--separator", "x"), "--separator must be one character that is no letter, digit, quote or point, got 'x'; give e.g. ';', ',' or tab"),
        "a decimal semicolon": Wrong((*NORTH, *EXACT, "--decimal", ";"), "--decimal must be a point or a comma, got ';'; give one"),
        "commas for everything": Wrong((*NORTH, *EXACT, "--decimal", ","), "--decimal must be another sign than the one between cells, got commas for both in north.csv; give --separator too"),
        "an unknown encoding": Wrong((*NORTH, *EXACT, "--encoding", "klingon"), "--encoding must be the name of a text encoding, got 'klingon'; give e.g. utf-8, cp1252 or latin-1"),
        "an encoding of Parquet": Wrong(("fit", "south.parquet", *EXACT, "--encoding", "cp1252", "-o", "new"), "--separator, --decimal and --encoding must go with text files, got south.parquet; leave them out"),
        "an empty folder": Wrong(("fit", "hollow", *EXACT, "-o", "new"), "hollow must hold CSV, TSV, Parquet, Feather or Arrow files, got nothing; check the path"),
        "a folder without tables": Wrong(("fit", "occupied", *EXACT, "-o", "new"), "occupied must hold CSV, TSV, Parquet, Feather or Arrow files, got none of them; check the path"),
        "parts of other columns": Wrong(("fit", "uneven", *EXACT, "-o", "new"), "uneven/2.csv must have the columns of uneven/1.csv, of whose table it is a part, got none named 'b'; write the parts with the same columns, or give them as silos of their own"),
        "parts that differ in their folders": Wrong(("fit", "scattered", *EXACT, "-o", "new"), "every part of scattered must lie in folders of the same keys, got none for scattered/1.csv and 'year' for scattered/year=2024/2.csv; move it"),
        "a pattern that fits nothing": Wrong(("fit", "parts/*.csv.gz", *EXACT, "-o", "new"), "parts/*.csv.gz must be a file that exists, got none there; give one file per silo"),
        "a folder and a part of it": Wrong(("fit", "uneven", "uneven/1.csv", *EXACT, "-o", "new"), "each silo must have rows of its own, got uneven/1.csv for both 'uneven' and '1'; give every file once"),
        "no such sheet": Wrong(("fit", "ward.xlsx#Summer", *EXACT, "-o", "new"), "ward.xlsx#Summer must name a sheet of ward.xlsx, got none of that name; its sheets are 'Winter'"),
        "text in a sheet": Wrong(("fit", "ward.xlsx", *EXACT, "-o", "new"), "column 'name' of ward.xlsx must hold numbers, got text at row 1; drop the column (--drop 'name'), or turn it into numbers, by a rule in a code book for instance"),
        "half a workbook": Wrong(("fit", "cut.xlsx", *EXACT, "-o", "new"), "cut.xlsx must be a complete .xlsx workbook, got one that is truncated or damaged; write or copy it again"),
        "a described file of unknown keys": Wrong(("fit", "keys.toml", *EXACT, "-o", "new"), "[data] of keys.toml must have only path and separator, decimal, encoding, each of them text, got 'sheet'; correct it"),
        "no such DuckDB file": Wrong(("fit", "duck.toml", *EXACT, "-o", "new"), "the database of duck.toml must be a file that exists, got none at none.duckdb; check the path (duckdb:////… where it begins with a slash)"),
    },
    "Names and units": {
        "a column that a silo does not have": Wrong(("fit", "north.csv", "other.csv", *EXACT, "-o", "new"), "other.csv must have the columns every silo agreed on, got a source without 'bmi'; rename the column that holds it (--rename OLD=NEW), or leave it out of the fit (--extra drop takes only what every silo has)"),
        "a new name without the old": Wrong((*NORTH, *EXACT, "--rename", "weight"), "Invalid value for '--rename': it must be OLD=NEW, got 'weight'; see `fedpower fit --help`"),
        "a column to rename that is nowhere": Wrong((*NORTH, *EXACT, "--rename", "shoe=foot"), "--rename must be of columns of north.csv, got 'shoe'; its columns are 'age', 'bmi', 'sbp', 'dbp', 'hdl'"),
        "two columns under one name": Wrong((*NORTH, *EXACT, "--rename", "bmi=age"), "north.csv, renamed, must have distinct column names, got 'age' more than once; rename the columns"),
        "names for an array": Wrong(("fit", "north.npy", *EXACT, "--rename", "a=b", "-o", "new"), "north.npy must be a table with names of columns to rename or convert them, got another kind of data; leave out --rename, factors and offsets"),
        "a factor of no column": Wrong(("fit", "stray.toml", *EXACT, "-o", "new"), "factors must be of columns of stray.toml, got 'weight'; its columns are 'age', 'bmi', 'sbp', 'dbp', 'hdl'"),
        "a factor of zero": Wrong(("fit", "nought.toml", *EXACT, "-o", "new"), "factors must be finite numbers other than 0, got another for 'age'; correct it"),
        "other settings for a real run": Wrong(("run", "agreed.toml", "--epsilon", 2), "--epsilon must go with --local, for a real run is the study's and its silos' to settle, got none; change the study, or the silos' files"),
        "a rehearsal's names without its rows": Wrong(("run", "agreed.toml", "--local", 2, "--rename", "a=b"), "--rename must go with --data, got none: rows that are made up need it not; leave it out"),
    },
    "Budgets": {
        "no ledger there": Wrong(("fit", "east.csv", *PRIVATE, "--ledgers", ".", "-o", "new"), "silo 'east' must have a ledger, got none at east.ledger; create it with `fedpower budget init east.ledger --epsilon E --delta D`"),
        "another silo's ledger": Wrong(("fit", "east.csv", *PRIVATE, "--ledger", "east=north.ledger", "-o", "new"), "ledger north.ledger must belong to silo 'east', got that of 'north'; give each silo its own, or name the silo as its ledger does"),
        "another data set's ledger": Wrong((*NORTH, *PRIVATE, "--ledger", "north=heart.ledger", "--data-set", "lungs"), "ledger heart.ledger must belong to the data set 'lungs' of silo 'north', got that of data set 'heart'; give each its own ledger, or name the data as their ledger does"),
        "a data set that is not named": Wrong((*NORTH, *PRIVATE, "--ledger", "north=heart.ledger"), "ledger heart.ledger must belong to data without a name of silo 'north', got that of data set 'heart'; give each its own ledger, or name the data as their ledger does"),
        "rows that changed": Wrong(("fit", "booked=east.csv", *PRIVATE, "--ledgers", ".", "-o", "new"), "the stored data of silo 'booked' must be those that its ledger knows as version '1', got others; declare a new version with --data-version, which is public and a new charge, or put the old data back as they were (nothing left the silo)"),
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
        "half of the components": Wrong(("transform", "torn", "north.csv"), "torn/components.npz must be as fedpower wrote it, got a damaged or foreign file; fit again or bring back the folder"),
        "a record that is no JSON": Wrong(("transform", "garbled", "north.csv"), "garbled/run.json must be as fedpower wrote it, got a damaged or foreign file; fit again or bring back the folder"),
        "a result of a later version": Wrong(("transform", "later", "north.csv"), "later must be of format 'fedpower-record/1', got 'fedpower-record/9'; read it with the fedpower that wrote it"),
        "a result without components": Wrong(("transform", "bare", "north.csv"), "bare must be a folder that `fedpower fit` wrote, got one without components.npz; check the path"),
        "rows of other columns": Wrong(("transform", "model", "dates.csv"), "dates.csv must have every column of the fit, got none named 'age' and 4 more; add it, or fit without it"),
        "a report of nothing": Wrong(("report", "nowhere"), "nowhere must be a folder that `fedpower fit` wrote, got nothing there; check the path"),
        "a report of half a result": Wrong(("report", "torn"), "torn/components.npz must be as fedpower wrote it, got a damaged or foreign file; fit again or bring back the folder"),
        "an export to an unknown format": Wrong(("export", "model", "--to", "fax", "-o", "out"), "Invalid value for '--to': 'fax' is not one of 'csv', 'parquet', 'plink', 'anndata', 'onnx'; see `fedpower export --help`"),
        "an export of a damaged record": Wrong(("export", "unsaid", "--to", "parquet", "-o", "out"), "unsaid/run.json must be as fedpower wrote it, got another (Expected `object`, got `null` - at `$.privacy`); fit again or bring back the folder"),
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
        "a folder that holds other files": Wrong(("fit", "north.csv", *EXACT, "-o", "occupied"), "occupied must be new or empty, got a folder that holds 'thesis.tex'; name another place"),
        "other files, by force": Wrong(("fit", "north.csv", *EXACT, "-o", "occupied", "--force"), "occupied must hold an earlier result and nothing else to be replaced, got 'thesis.tex' in it; name another place"),
        "a file where the folder should be": Wrong(("fit", "north.csv", *EXACT, "-o", "north.csv"), "north.csv must be a folder, got a file there; name another place"),
        "a file that may not be read": Wrong(("fit", "sealed.csv", *EXACT, "-o", "new"), "sealed.csv must be readable, got no permission; ask its owner for it", under="no permission"),
        "a folder that may not be written": Wrong(("fit", "north.csv", *EXACT, "-o", "shut/new"), "shut/new must be in a folder that can be written, got none (Permission denied); name another place", under="no permission"),
        "scores where none may be written": Wrong(("transform", "model", "north.csv", "-o", "shut/scores.csv"), "shut/scores.csv must be in a folder that can be written, got none (Permission denied); name another place", under="no permission"),
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
    "dates.csv": "a,b\n2020-01-01,2\n2020-01-02,4\n",
    "bad.svm": "1 1:x\n",
    "bad.toml": "silo = [\n",
    "doubt.csv": "a;b,c\n3;4,5\n6;7,8\n",
    "mixed.csv": "a;b\n1,5;2.5\n3;4\n",
    "thousands.csv": "a;b\n1,500;2\n3;4\n",
    "other.csv": "age,gewicht,sbp,dbp,hdl\n1,2,3,4,5\n2,3,5,7,1\n",
    "keys.toml": '[data]\npath = "north.csv"\nsheet = "A"\n',
    "duck.toml": '[data]\nquery = "SELECT * FROM visits"\ndatabase = "duckdb:///none.duckdb"\n',
    "stray.toml": '[data]\npath = "north.csv"\n[columns.factors]\nweight = 2.2\n',
    "nought.toml": '[data]\npath = "north.csv"\n[columns.factors]\nage = 0\n',
    "uneven/1.csv": "a,b\n1,2\n",
    "uneven/2.csv": "a,c\n1,2\n",
    "scattered/1.csv": "a,b\n1,2\n",
    "scattered/year=2024/2.csv": "a,b\n1,2\n",
}
TEXTS |= {
    "gap.csv": "a,b\n1,2\n,3\n4,5\n",
    "clinic.csv": "age,sex,grade,smoker,seen\n50,F,low,yes,2001-02-03\n61,M,high,no,2001-02-04\n70,X,mid,never,someday\n",
    "games.csv": "winner,loser,points\nash,oak,1\nyew,oak,2\n",
    "alone.csv": "winner,loser\nash,oak\noak,oak\n",
    "clash.csv": "sex,sex=F\nF,1\nM,0\n",
}
RULES = {
    "unfilled": "sex = { levels = [] }",
    "doubled": "sex = ['F', 'F']",
    "others": "sex = ['F', 'other']",
    "unlisted": "sex = { kind = 'levels' }",
    "unkind": "age = { kind = 'integer' }",
    "slip": "age = { kind = 'number', rnage = [0, 120] }",
    "backwards": "age = { kind = 'number', range = [120, 0] }",
    "ranged": "sex = { levels = ['F', 'M'], range = [0, 1] }",
    "marked": "age = { kind = 'number', indicator = true }",
    "often": "age = { kind = 'number', missing = 'often' }",
    "beyond": "age = { kind = 'number', range = [0, 120], missing = 999 }",
    "stranger": "sex = { levels = ['F', 'M'], missing = 'X' }",
    "both": "sex = { levels = ['F', 'M'], missing = 'F', indicator = true }",
    "undated": "seen = { kind = 'date' }",
    "misdated": "seen = { kind = 'date', origin = '31.1.2000' }",
    "fortnight": "seen = { kind = 'date', origin = 2000-01-31, unit = 'fortnights' }",
    "single": "grade = { ordered = ['low'] }",
    "number": "age = 3",
    "wordless": "age = { kind = 'number', missing_words = 'NA' }",
    "perhaps": "age = { kind = 'number', missing = 0, indicator = 'yes' }",
    "all-dropped": "age = 'drop'",
    "height": "height = 'number'",
    "gap": "a = 'number'",
    "grade": "sex = ['F']\ngrade = { ordered = ['low', 'high'] }\nsmoker = 'drop'\nseen = 'drop'",
    "smoker": "sex = ['F']\ngrade = 'drop'\nsmoker = 'yes/no'\nseen = 'drop'",
    "seen": "sex = ['F']\ngrade = 'drop'\nsmoker = 'drop'\nseen = { kind = 'date', origin = 2000-01-31 }",
    "text": "sex = ['F']\ngrade = 'drop'\nsmoker = { kind = 'number', missing = 0, missing_words = ['never', 'no'] }\nseen = 'drop'",
    "clash": "sex = ['F', 'M']",
    "trees": "winner = { items = ['ash', 'oak'], against = 'loser' }\npoints = 'drop'",
    "yews": "winner = { items = ['ash', 'oak', 'yew'], against = 'loser' }\npoints = 'drop'",
    "unopposed": "winner = { items = ['ash', 'oak'] }",
    "boundless": "winner = { items = ['ash', 'oak'], against = 'loser', margin = 'points' }",
    "crowded": "winner = { items = ['ash', 'oak'], against = 'loser' }\npoints = 'number'",
    "draft": "sex = ['F']\nage = { kind = 'number', range = [0, 120] }",
}
TEXTS |= {
    f"{name}.toml": f'format = "fedpower-codebook/2"\n[rules]\n{text}\n' for name, text in RULES.items()
}
TEXTS |= {
    "outside.toml": 'format = "fedpower-codebook/2"\nsex = ["F", "M"]\n',
    "flat.toml": 'format = "fedpower-codebook/2"\nrules = 3\n',
    "later.toml": 'format = "fedpower-codebook/9"\n',
    "bare.toml": 'format = "fedpower-codebook/2"\nbound = 2.0\n',
    "full.toml": 'format = "fedpower-codebook/2"\nbound = 2.0\n'
    + "".join(
        f'[[column]]\nname = "{name}"\noffset = 0.0\nscale = 1.0\nlow = -9.0\nhigh = 9.0\n'
        for name in ("age", "bmi", "sbp", "dbp", "hdl")
    ),
    "visits.csv": "age,bmi,patient\n50,20,Q1\n60,21,\n",
    "ids.csv": "patient\nQ1\nQ2\n",
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
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "hollow").mkdir()
    (folder / "umlaut.csv").write_text("größe,b\n1,2\n3,4\n", encoding="cp1252")
    book = write_xlsx(folder / "ward.xlsx", Winter=[["name", "age"], ["Meier", 61], ["Kunz", 50]])
    (folder / "cut.xlsx").write_bytes(book.read_bytes()[:500])
    succeed(
        "study", "init", "agreed.toml", "--name", "heart", "--silos", "a,b", "--columns", "x,y", "-k", 1,
        "--epsilon", 1, "--normalize",
    )  # fmt: skip
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
    (folder / "edges.csv").write_text("source,target\nann,bob\nbob,cyd\n")
    (folder / "heavy.csv").write_text("source,target,weight\nann,bob,7\n")
    (folder / "nodes.txt").write_text("ann\nbob\ncyd\ndan\n")
    (folder / "few.txt").write_text("ann\nbob\n")
    (folder / "odd.csv").write_text("zoe,1\n")
    succeed("release", "north.csv", "--epsilon", "inf", "-o", "kept")
    for name in ("torn", "garbled", "later", "bare", "unsaid", "sealed"):
        shutil.copytree("model", name)
    torn = folder / "torn" / "components.npz"
    torn.write_bytes(torn.read_bytes()[:300])
    (folder / "garbled" / "run.json").write_text("{")
    later = folder / "later" / "run.json"
    later.write_text(later.read_text().replace("fedpower-record/1", "fedpower-record/9"))
    (folder / "bare" / "components.npz").unlink()
    unsaid = folder / "unsaid" / "run.json"
    unsaid.write_text(json.dumps({**json.loads(unsaid.read_text()), "privacy": None}))
    (folder / "sealed").chmod(0o500)
    (folder / "sealed.csv").write_text("a,b\n1,2\n3,4\n")
    (folder / "sealed.csv").chmod(0)
    (folder / "shut").mkdir(mode=0o500)
