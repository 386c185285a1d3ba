# `make` or `make help` lists all commands. They need only make and Python.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --constraint constraints.txt
# LOCKED=1, as in CI: every file has a hash. Linux with x86-64 only.
ifdef LOCKED
LOCK := $(BIN)/python -m pip --disable-pip-version-check install -qq --no-deps --require-hashes --requirement ci/locked.txt
PIP := $(LOCK) && $(BIN)/python -m pip --disable-pip-version-check install -qq --no-deps --no-build-isolation
endif
# Keep compiled tests in any shell, since rewriting their asserts takes each worker as long as many tests.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q

.DEFAULT_GOAL := help
.PHONY: help demo smoke test test-slow test-gpu check docs
.DELETE_ON_ERROR:

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed ## which cache should each bundled model use? in about 5 minutes; write demo/report.html
	@mkdir -p demo
	@$(BIN)/cachemark run demo --threads 1 --store demo/demo.sqlite --report demo/report.html
	@echo "The report: $(CURDIR)/demo/report.html"

smoke: $(VENV)/.installed ## some tests of every package, in about a minute (listed in tests/smoke.txt)
	@$(PYTEST) -m "not slow and not gpu" @tests/smoke.txt

test: $(VENV)/.installed ## all tests that need neither a GPU nor long repetitions, as in CI
	@$(PYTEST) -m "not slow and not gpu" --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.installed ## the nightly tests of CI: repeated trials, and all cases that `make test` samples
	@$(PYTEST) -m "slow and not gpu"

test-gpu: $(VENV)/.installed ## the tests that need a CUDA device
	@$(BIN)/python -c "import sys, torch; torch.cuda.is_available() or sys.exit('make test-gpu needs a CUDA device, \
	and torch %s (%s) finds none here.' % (torch.__version__, 'CUDA ' + torch.version.cuda if torch.version.cuda \
	else 'built for the CPU only'))"
	@$(PYTEST) -m gpu

check: $(VENV)/.installed-dev ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/mypy

docs: $(VENV)/.installed-docs ## generate reference pages, run every code block of the guides, build the site into site/
	@PYTHONPATH=tests:. $(BIN)/python -m conformance.summary
	@$(BIN)/python -m tools.cards docs --costs
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --strict
	@$(PYTEST) tests/test_docs.py
	@echo "The site: $(CURDIR)/site/index.html"

# The stamp has the environment's age; editing either file reinstalls it.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing cachemark into $(VENV); the first time this takes some minutes."
	@$(PIP) --editable '.[quality,test]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(PIP) --editable '.[quality,test,dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@$(PIP) --editable '.[quality,test,docs]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.version_info >= (3, 11) or sys.exit('cachemark needs Python 3.11 or newer and $(PYTHON) is ' \
	+ sys.version.split()[0] + '. Name another one: make PYTHON=python3.12')"
	@$(PYTHON) -m venv $(VENV)
