# Everything runs in .venv, which is made anew when pyproject.toml, the versions or what is compiled changes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := pyproject.toml constraints.txt */pyproject.toml hatch_build.py $(wildcard dafka/*/accelerator/*)

# The versions that the tests pass with: a newer release of a library turns nothing red. Empty: the newest ones.
CONSTRAINTS ?= constraints.txt
INSTALL = $(BIN)/python -m pip install --quiet $(addprefix --constraint ,$(CONSTRAINTS))

# Hundreds of processes load the same modules: they are compiled once, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-spark test test-room test-hard test-long test-newest lock conformance mutants mutants-sample check docs dist binary format clean

help: ## Show these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "make %-14s %s\n", $$1, $$2 }'

demo: $(VENV)/demo ## Send real records through a cluster on this machine
	$(BIN)/dafka demo

demo-spark: $(VENV)/demo-spark ## The same records in Spark (needs Java 17)
	$(BIN)/python examples/flights_pipeline.py

# More workers than cores: many tests wait for processes and sockets. tests/conftest.py has the order.
test: $(VENV)/dev ## Run the tests (6 to 7 minutes on 2 cores)
	$(BIN)/pytest --workers=7 --durations=15

ROOM ?=
test-room: $(VENV)/dev ## Run the tests of one part of dafka/: make test-room ROOM=broker/core
	@$(BIN)/python -m tests.rooms "$(ROOM)"

HARDSHIPS ?= --busy-loops 8 --jumping-clock --memory-gib 4
test-hard: $(VENV)/dev ## Run the tests beside busy loops, with a wall clock that jumps, in 4 GiB (needs root)
	$(BIN)/python -m tests.hardships $(HARDSHIPS) -- $(BIN)/pytest --workers=5

# What takes minutes, or repeats at length what the other tests try: crash loops, packaging, the second dialect.
test-long: $(VENV)/dev ## Run the tests that `make test` leaves out because they are long
	$(BIN)/pytest -m long --hypothesis-profile=new --workers=3 --durations=15

test-newest: ## Run the tests with the newest versions of all libraries, in .venv-newest
	rm -rf .venv-newest
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=

lock: test-newest ## Write the newest versions into constraints.txt, if the tests pass with them
	mkdir -p build
	sed -n '/^#/p' constraints.txt > build/constraints.txt
	.venv-newest/bin/python -m pip freeze --exclude-editable >> build/constraints.txt
	mv build/constraints.txt constraints.txt

# Both dialects at once, each node as a process of its own, as for a target of anybody else. Most of ten targets wait. A busy
# machine takes longer.
conformance: $(VENV)/dev ## Run the conformance suite against the command dafka (about 5 minutes)
	$(BIN)/dafka-conformance run dafka --patience 3 --jobs 10

# Changes the code in small ways, one at a time, where it differs from BASE; docs/contributing/mutation-testing.md.
BASE ?= main
mutants: $(VENV)/dev ## Find what the tests miss in the lines changed since BASE (default: main)
	$(BIN)/python -m tests.mutation --since $(BASE)

# Over all of dafka/, each week: docs/contributing/mutation-results.md. At least 92 % must be noticed.
SAMPLE ?= 300
SEED ?= $(shell date +%G%V)
mutants-sample: $(VENV)/dev ## Write the page of results of a random sample of mutants (hours)
	$(BIN)/python -m tests.mutation --sample $(SAMPLE) --seed $(SEED) --page

check: $(VENV)/dev ## Check style, docstrings, types and English
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pydoclint dafka conformance/dafka_conformance benchmarks/dafka_bench
	$(BIN)/mypy
	$(BIN)/python -m tests.plain_english

# Offline, into docs/_build/html; any warning, such as a broken link, ends it.
docs: $(VENV)/dev ## Build the documentation into docs/_build/html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html

# The source distribution, and from it a wheel with the accelerators for this platform and one for all platforms.
dist: $(VENV)/dev ## Build the source distribution and the wheels into dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m build --outdir dist conformance
	$(BIN)/python -m build --outdir dist benchmarks
	DAFKA_BUILD_ACCELERATOR=off $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist dist/dafka-*.tar.gz

# In an environment of its own, so that nothing else that is installed gets into it; `python -m` would look here first.
BINARY_BUILD ?= build/binary
BINARY_DIST ?= dist
binary: ## Build dist/dafka, one file that runs without Python
	$(PYTHON) -m venv --clear $(BINARY_BUILD)/venv
	$(BINARY_BUILD)/venv/bin/python -m pip install --quiet '.[binary]'
	$(BINARY_BUILD)/venv/bin/pyinstaller --noconfirm --log-level WARN \
		--distpath $(BINARY_DIST) --workpath $(BINARY_BUILD)/work deploy/binary/dafka.spec
	$(BINARY_DIST)/dafka --version

format: $(VENV)/dev ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove everything that was built
	rm -rf .venv .venv-newest .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist docs/_build dafka/*/*.so

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "dafka needs Python 3.11 or newer; name one with make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo: $(INSTALLED) | $(BIN)/python
	$(INSTALL) --editable '.[demo]'
	touch $@

# Java first: it is small to look for, and what is to be installed for Spark is large.
$(VENV)/demo-spark: $(VENV)/demo
	$(BIN)/python -m dafka.spark.java
	$(INSTALL) --editable '.[demo-spark]'
	touch $@

$(VENV)/dev: $(INSTALLED) | $(BIN)/python
	$(INSTALL) --editable '.[dev]' --editable conformance --editable benchmarks
	touch $@
