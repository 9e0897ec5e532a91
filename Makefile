# Every target sets itself up: all it needs is Python 3.11 or newer with pip. `make PYTHON=python3.13 test` picks another.

# The first one on the PATH that was compiled with optimisations, as those of distributions are and those of version
# managers often are not: the engine takes a fifth to a quarter less of the processor with it. If there is none, any.
OPTIMISED := import sys, sysconfig, ensurepip; \
	sys.exit(sys.version_info < (3, 11) or sys.base_prefix != "/usr" \
	and "--enable-optimizations" not in sysconfig.get_config_var("CONFIG_ARGS"))
ifndef PYTHON
PYTHON := $(or $(shell for python in $$(which -a python3 2>/dev/null); do \
	$$python -c '$(OPTIMISED)' 2>/dev/null && echo $$python && break; done),python3)
endif
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BROWSER := $(VENV)/.browser
PEERS  := .venv-peers
VERSIONS := 3.11 3.12 3.13
MODEL_TESTS := tests/kernel tests/functions tests/graphs tests/cooperation
CODE   := $(wildcard src tests bench examples release)
# One more than there are processors: many tests wait for timers, processes and disks.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

# Tests and benchmarks launch the package hundreds of times: it is compiled once, wherever that is switched off.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := check
.PHONY: demo demo-ui test test-pythons test-python check lint format types bench bench-scale bench-lists bench-graphs simulate mutants chaos soak release-check clean

demo: $(STAMP)           ## a shop whose process is killed, and whose orders arrive all the same
	@$(BIN)/python examples/shop/demo.py

demo-ui: $(STAMP)        ## a lively shop, and the dashboard to look at it with, until Ctrl-C: PORT=8080
	@$(BIN)/python examples/dashboard.py $(PORT)

check: lint types test   ## all that CI does
	@$(MAKE) --no-print-directory test-pythons

lint: $(STAMP)           ## rules and formatting
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

format: $(STAMP)         ## format the code, and fix what can be fixed
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

types: $(STAMP)          ## mypy and pyright, both strict
	$(BIN)/mypy $(CODE)
	$(BIN)/pyright --pythonpath $(BIN)/python $(CODE)

test: $(STAMP) $(BROWSER)  ## all tests but the soak
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 5 --dist worksteal

# Other Pythons that Perdure supports, as far as this machine has them: on the PATH, or kept by pyenv. Each has an
# environment of its own.
test-pythons: $(STAMP)   ## unit tests and those of the models, in memory, on each other Python from 3.11 to 3.13 that is found
	@own=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	for version in $(VERSIONS); do \
		[ $$version = $$own ] && continue; found=; \
		for python in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python; do \
			$$python -c 'import ensurepip' 2>/dev/null && found=$$python && break; done; \
		if [ -z "$$found" ]; then echo "no Python $$version on this machine: not tested"; continue; fi; \
		$(MAKE) --no-print-directory test-python VERSION=$$version OTHER=$$found || exit 1; \
	done

test-python: .venv-$(VERSION)/.installed
	@echo "== Python $(VERSION)"
	.venv-$(VERSION)/bin/python -m pytest -q -n $(WORKERS) --maxprocesses 5 --dist worksteal -k "not postgres and not sqlite" $(MODEL_TESTS)

.venv-%/.installed: pyproject.toml
	@echo "setting up .venv-$* (once, and when pyproject.toml changes)"
	@test -x .venv-$*/bin/python || $(OTHER) -m venv .venv-$*
	@PIP_DISABLE_PIP_VERSION_CHECK=1 .venv-$*/bin/python -m pip install -qq -e '.[dev]'
	@touch $@

bench: $(STAMP)          ## what the engine does per second, beside the floor of the store
	@$(BIN)/python -m bench

bench-scale: $(STAMP)    ## a million waiting runs; ended, wide and deep hierarchies; overdue timers and unread events
	@$(BIN)/python -m bench.scale
	@$(BIN)/python -m bench.grown
	@$(BIN)/python -m bench.shapes
	@$(BIN)/python -m bench.backlog

bench-lists: $(STAMP)    ## pages of a million runs, with every filter, on SQLite and Postgres
	@$(BIN)/python -m bench.lists

bench-graphs: $(STAMP) $(PEERS)/.installed  ## one run of a graph with up to 10,000 branches; graphs beside LangGraph
	@$(BIN)/python -m bench.graphs
	@$(BIN)/python -m bench.expressions
	@$(BIN)/python -m bench.templates
	@$(PEERS)/bin/python -m bench.langgraph

simulate: $(STAMP)       ## engines on a simulated database, with faults drawn by lot: SEEDS=10000 FROM=1
	@$(BIN)/python -m perdure.testing.simulate --seeds $(or $(SEEDS),10000) $(if $(FROM),--from $(FROM))

mutants: $(STAMP)        ## deliberate bugs, and the suites that find them: ONLY=join-counts-a-branch-twice SUITE=simulate JOBS=2
	@$(BIN)/python -m tests.mutants --search --jobs $(or $(JOBS),1) $(if $(SUITE),--suite $(SUITE)) $(foreach name,$(ONLY),--only $(name))

chaos: $(STAMP)          ## three engines and callers under kills, pauses, crashes, cut networks: MINUTES=20 STORE=postgres
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),20) --store $(or $(STORE),postgres) $(if $(SEED),--seed $(SEED))

soak: $(STAMP)           ## random faults for minutes
	PERDURE_SOAK=1 $(BIN)/python -m pytest tests -m soak -rP

release-check: $(STAMP)  ## what goes into a release: build/sbom.cdx.json, and known holes in it; OFFLINE=1 goes on without
	@$(BIN)/python -m release.sbom build/sbom.cdx.json
	@$(BIN)/python -m release.audit $(if $(OFFLINE),--offline)

clean:                   ## remove everything that the other targets made
	rm -rf $(VENV) $(VERSIONS:%=.venv-%) $(PEERS) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so an installation that broke off is done again.
$(STAMP): pyproject.toml
	@echo "setting up $(VENV) (once, and when pyproject.toml changes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Perdure needs Python 3.11 or newer: make PYTHON=...")'
	@test -x $(BIN)/python || { $(PYTHON) -m venv $(VENV) && echo "with $$($(PYTHON) --version), $(PYTHON)"; }
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -qq -e '.[dev]'
	@touch $@

# The dashboard's tests need a Chromium: the machine's own, or Debian's, or playwright's.
$(BROWSER): $(STAMP)
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v $$name >/dev/null && found=yes; done; \
	if [ -z "$$found$$PERDURE_CHROMIUM" ]; then echo "setting up a browser for the tests (once)"; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
		then apt-get update -qq && apt-get install -y -qq chromium >/dev/null; \
		else $(BIN)/playwright install chromium; fi; fi
	@touch $@

# What others have made, to be measured beside: apart, so that nothing of it gets into what is tested.
$(PEERS)/.installed: pyproject.toml
	@echo "setting up $(PEERS) (once, and when pyproject.toml changes)"
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PEERS)/bin/python -m pip install -qq -e '.[graphs,uvloop]' langgraph langgraph-checkpoint-sqlite
	@touch $@
