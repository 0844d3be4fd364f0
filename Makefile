# Every target does its own set-up: Python >= 3.11 and make are all that a machine needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.base
STAMP  := $(VENV)/.installed
DEVICES := $(VENV)/.devices
DOCS   := $(VENV)/.docs
# Two workers with a BLAS of one thread each: on two cores more threads only get in each other's way.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest
TWO    := -n 2 --dist worksteal
# Where tests mainly wait for servers, three files at a time: the tests of one share its servers.
THREE  := -n 3 --dist loadfile
TIERS  := test-slow test-programs test-audits test-memory test-reproduce test-benchmarks test-pages test-devices \
	test-browser test-federation test-image

# What Python compiles it keeps, also where the machine's setting is otherwise: hundreds of processes read it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint types contracts unit $(TIERS) durations coverage golden bench bench-all docs docs-results docs-report reproduce bundle clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(STAMP)  ## make .venv with everything pinned by constraints.txt

$(BASE): pyproject.toml constraints.txt hatch_build.py $(wildcard src/fedpower/native/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "fedpower needs Python 3.11 or newer; run make PYTHON=python3.11 ...")'
	@echo "setting up $(VENV): a minute, once"
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(STAMP): $(BASE)
	@echo "installing what tests need: some minutes, once"
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(DEVICES): $(STAMP)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,torch]'
	@touch $@

$(DOCS): $(STAMP)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,docs]'
	@touch $@

demo: $(BASE)  ## three hospitals, one health survey: under half a minute
	@$(BIN)/python examples/demo.py

test: setup  ## what to run after every change: lint, types, import contract, fast tests (under two minutes)
	@$(MAKE) --no-print-directory -j4 lint types contracts unit

test-all: test $(TIERS) docs  ## everything CI runs: that, every other tier and the documentation (half an hour)

lint: setup  ## ruff: format and rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup  ## mypy, strict
	$(BIN)/mypy -p fedpower -p paper

contracts: setup  ## arrows between modules point down only
	$(BIN)/lint-imports --no-cache

unit: setup  ## the fast tests: those that no other tier has
	$(PYTEST) $(TWO)

test-slow: setup  ## tests that compute for seconds
	$(PYTEST) $(TWO) -m slow

test-programs: setup  ## tests that start fedpower as a program: doctor, completion, progress, interrupts
	$(PYTEST) $(TWO) -m programs

test-audits: setup  ## games against the noise, attacks, tails of its law
	$(PYTEST) $(TWO) -m audits

test-memory: setup  ## passes over large files in little memory
	$(PYTEST) $(TWO) -m memory

test-reproduce: setup  ## the paper's experiments in the small
	$(PYTEST) $(TWO) -m reproduce

test-benchmarks: $(DEVICES)  ## every benchmark in the small: installs PyTorch
	$(PYTEST) $(TWO) -m benchmarks

test-devices: $(DEVICES)  ## tensors, devices and the fused kernel: installs PyTorch
	$(PYTEST) $(TWO) -m "devices and not benchmarks"

test-pages: $(DEVICES)  ## every block of the documentation, with servers where it needs them
	$(PYTEST) $(TWO) -m "pages and not federation"
	$(PYTEST) $(THREE) -m "pages and federation"

test-browser: setup  ## tests of the report in a real browser; installs Chromium if needed
	scripts/install-chromium
	$(PYTEST) -m browser

test-federation: setup  ## tests against real servers; installs PostgreSQL if needed
	scripts/install-postgres
	$(PYTEST) $(THREE) -m "federation and not pages"

test-image: setup  ## builds the image and runs a federation in it; installs buildah if needed, as root
	scripts/install-buildah
	$(PYTEST) -m image

durations: setup  ## the fast tests, and which of them take longest
	$(PYTEST) $(TWO) --durations=40

coverage: setup  ## lines and branches that the fast tests reach, in build/coverage
	@mkdir -p build
	COVERAGE_FILE=build/.coverage OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest
	COVERAGE_FILE=build/.coverage $(BIN)/python -m coverage html -d build/coverage
	COVERAGE_FILE=build/.coverage $(BIN)/python -m coverage report --skip-covered --sort=cover

golden: setup  ## pin hashes, message bytes, results, amounts and options as they are now; then read the diff
	PYTHONPATH=tests $(BIN)/python tests/golden/pins.py

bench: $(DEVICES)  ## measure CASES="libraries …" (`python -m benchmarks list` shows them); tables and pictures
	$(BIN)/python -m benchmarks $(or $(CASES),list)
	$(BIN)/python -m benchmarks render
	$(BIN)/python -m benchmarks pictures

bench-all: $(DEVICES)  ## measure every case (hours, on a quiet machine)
	$(MAKE) bench CASES=all

docs: $(DOCS)  ## build the documentation into build/site (two minutes at most); a warning or a dead link fails
	rm -rf build/site
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --jobs auto -b html docs build/site
	$(BIN)/python docs/site/check.py build/site

docs-results: setup  ## write the tables of the documents from recorded results
	$(BIN)/python -m benchmarks render

docs-report: setup  ## docs/report.png, docs/approve.png and their dark twins, pictures of a report and of an approval
	scripts/install-chromium
	$(BIN)/python scripts/report_picture.py
	$(BIN)/python scripts/approval_picture.py

reproduce: setup  ## the paper's figures at its size, every sentence of its section 5 tested
	$(BIN)/python -m paper -o reproduction

bundle: $(BASE)  ## what a site without a network needs, in build/fedpower-bundle.tar: wheels and the image's files
	scripts/bundle

clean:  ## remove the environment and what was built
	rm -rf $(VENV) build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .bench
