# Every target makes what it needs: a fresh checkout can start anywhere.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test processors flower soak check format bench docs wheel clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## Show the whole idea on four hospitals, with a table and a picture
	$(BIN)/pacdp demo --out build/demo

setup: $(VENV)/.developer ## Make the virtual environment with everything a developer needs

test: setup ## Run every test, on all cores
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

# The guarantee must hold on other processors, too; these variables make this one stand in for them.
ENGINES := tests/clipping tests/federation/test_algorithm.py tests/federation/test_client.py \
  tests/federation/test_engine.py tests/federation/test_record_budgets.py \
  tests/federation/test_server.py tests/offline
ON_ENGINES := $(BIN)/python -m pytest --quiet --numprocesses 2 --dist loadfile $(ENGINES)

processors: setup ## Run the tests of engines and releases as other kinds of processors would
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 \
	  PACDP_TEST_THREADS=1 $(ON_ENGINES)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	  PACDP_TEST_THREADS=2 $(ON_ENGINES)
	PACDP_TEST_THREADS=4 $(ON_ENGINES)

# Flower's requirements conflict with ours, so it has a separate environment.
FLOWER := PACDP_FLOWER_ENV=$(abspath build/flower)

flower: setup ## Create Flower's virtual environment, for the tests of real federations
	mkdir -p build
	$(FLOWER) $(BIN)/python -m pacdp.flower.environment

SOAK := $(FLOWER) $(BIN)/python -m tests.deployment.soak

soak: flower ## Run long federations: with 51 kills, and with 20 sites over 200 rounds
	$(SOAK) build/soak-flower --rounds 40 --kills 12 --seed 1
	$(SOAK) build/soak-direct-2 --rounds 60 --kills 13 --seed 2 --transport direct
	$(SOAK) build/soak-direct-3 --rounds 60 --kills 13 --seed 3 --transport direct
	$(SOAK) build/soak-direct-4 --rounds 60 --kills 13 --seed 4 --transport direct
	$(SOAK) build/soak-sites --sites 20 --rounds 200 --transport direct

check: setup ## Lint, formatting, strict types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup ## Format the code and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Measure against other libraries; writes build/bench.json row by row
	$(BIN)/python -m benchmarks

docs: setup ## Build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: setup ## Build the wheel, install it in a clean environment and use it there
	rm -rf build/dist build/clean build/lib build/bdist*
	mkdir -p build
	$(BIN)/python -m build --wheel --outdir build/dist > build/wheel.log
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet --constraint constraints.txt build/dist/*.whl
	cd build/clean && bin/pacdp --version && bin/pacdp calibrate --epsilon 0.1 --releases 13

clean: ## Remove the virtual environment and everything built
	rm -rf $(VENV) build

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pacdp needs Python 3.11 or newer; name one with: make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.developer: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed
