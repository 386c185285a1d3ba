# `make` or `make help` lists everything there is. Nothing but make and Python has to be on the machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --constraint constraints.txt
# Compiled tests are kept, whatever the shell says: to rewrite their asserts anew takes each worker as long as many of them.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q

.DEFAULT_GOAL := help
.PHONY: help demo smoke test test-slow test-gpu check docs
.DELETE_ON_ERROR:

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed ## which cache should each bundled model use? in minutes; write demo/report.html
	@mkdir -p demo
	@$(BIN)/cachemark run demo --threads 1 --store demo/demo.sqlite --report demo/report.html
	@echo "The report: $(CURDIR)/demo/report.html"

smoke: $(VENV)/.installed ## a little of every room in about a minute: the tests that tests/smoke.txt names
	@$(PYTEST) -m "not slow and not gpu" @tests/smoke.txt

test: $(VENV)/.installed ## what CI runs: all tests that need neither a GPU nor long repetitions
	@$(PYTEST) -m "not slow and not gpu" --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.installed ## what CI runs at night: repeated trials, and every case of what `make test` samples
	@$(PYTEST) -m "slow and not gpu"

test-gpu: $(VENV)/.installed ## the tests that need a CUDA device
	@$(BIN)/python -c "import sys, torch; torch.cuda.is_available() or sys.exit('make test-gpu needs a CUDA device, \
	and torch %s (%s) finds none here.' % (torch.__version__, 'CUDA ' + torch.version.cuda if torch.version.cuda \
	else 'built for the CPU only'))"
	@$(PYTEST) -m gpu

check: $(VENV)/.installed-dev ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/mypy

docs: $(VENV)/.installed-docs ## make the cards anew, run every code block of the guides, build the site into site/
	@PYTHONPATH=tests:. $(BIN)/python -m conformance.summary
	@$(BIN)/python -m tools.cards docs
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --strict
	@$(PYTEST) tests/test_docs.py tests/test_errors.py tests/test_site.py
	@echo "The site: $(CURDIR)/site/index.html"

# An environment is as old as its stamp: an edit of either file installs anew.
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
