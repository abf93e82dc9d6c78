# Every target sets up what it needs. PYTHON chooses the interpreter that makes the virtual environment.
PYTHON ?= python3
BIN := .venv/bin
SETUP := pyproject.toml constraints.txt tools/setup.sh tools/packages.sh
ARGS ?=

.DEFAULT_GOAL := test
.PHONY: venv demo test check lint types tests fuzz mutate simulate bench clean

venv: .venv/all.stamp

.venv/all.stamp: $(SETUP)
	PYTHON="$(PYTHON)" sh tools/setup.sh all

.venv/server.stamp: $(SETUP)
	PYTHON="$(PYTHON)" sh tools/setup.sh server

demo: .venv/server.stamp
	$(BIN)/notwice demo $(ARGS)

test: check tests

check: lint types

lint: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: venv
	$(BIN)/mypy
	$(BIN)/pyright

# Two workers: most tests wait for a disk or a server. A file's tests stay together, for they share its servers.
tests: venv
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

fuzz: venv
	$(BIN)/python -m tests.fuzz $(ARGS)

# Not part of `venv`: it is needed by nothing else.
.venv/mutation.stamp: .venv/all.stamp
	$(BIN)/python -m pip --disable-pip-version-check -qq install --constraint constraints.txt --no-build-isolation --editable ".[mutation]"
	touch $@

mutate: .venv/mutation.stamp
	$(BIN)/python -m tests.mutation $(ARGS)

simulate: venv
	$(BIN)/python -m notwice.testing.simulate $(ARGS)

# What the tests do for a minute, ten times over.
torture: venv
	folder=$$(mktemp -d) && url="sqlite:///$$folder" \
	&& $(BIN)/python -m notwice.testing.torture "$$url/records.db?timeout=60" --operations 600000 --faults 6000 $(ARGS) \
	&& $(BIN)/python -m notwice.testing.torture "$$url/payments.db?timeout=60" --work payments --operations 60000 --faults 2000 $(ARGS) \
	&& rm -r "$$folder"
	NOTWICE_POWER_CUTS=100 NOTWICE_LONG_FAULTS=1 $(BIN)/python -m pytest -s -o timeout=0 tests/stores/test_power_cut.py tests/stores/test_faults.py
	NOTWICE_TIMES=10 NOTWICE_POWER_CUTS=100 $(BIN)/python -m pytest -s -o timeout=0 tests/stores/postgres tests/stores/mysql tests/stores/redis tests/stores/dynamodb -k "TestDisasters or TestTakeOvers or cut or failover or races"

bench: venv
	$(BIN)/python -m bench $(ARGS)

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
