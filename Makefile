# Two commands matter: `make run` and `make test`. Everything they need, they set up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
STAMP := $(VENV)/.ready
PUMP := $(VENV)/.pump

.PHONY: help setup run check test soak test-peers proto lock clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMP) $(PUMP)  ## virtual environment, locked packages, jars of Kafka and Spark's connectors, the pump

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: $(PYTHON) is missing or older than 3.11; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.packages: requirements/dev.txt pyproject.toml | $(VENV)/bin/python
	@echo "setting up: Python packages"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMP): $(VENV)/.packages src/penstock/fleet/pom.xml src/penstock/fleet/jars.sha256 src/penstock/wire/definitions.py \
  src/penstock/pipeline/pom.xml src/penstock/pipeline/jars.sha256
	@rm -f src/penstock/wire/definitions.bin
	@$(BIN)/penstock fleet fetch
	@$(BIN)/penstock pipeline fetch
	@touch $@

# Whatever changed, the tool looks whether the compiled code is still of these sources.
$(PUMP): $(VENV)/.packages tools/pump.py $(shell find src/penstock -name '*.py')
	@$(BIN)/python -m tools.pump
	@touch $@

run: setup  ## start the platform in the foreground; Ctrl-C stops it and keeps its data
	@$(BIN)/penstock up

check: setup  ## formatting, lint, types, import contracts, tidiness
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(PYTEST) -q tests/test_tidy.py

test: check  ## all of the above, then the whole suite
	@$(PYTEST) -m "not soak and not peers"

soak: setup  ## kill-and-recover loops of ten minutes each, and properties on examples nobody has seen
	@$(PYTEST) -m "not soak and not peers and not kafka and not spark" --hypothesis-profile=explore --timeout=1800
	@$(PYTEST) -m soak --hypothesis-profile=explore --timeout=1800

test-peers: setup  ## against other projects' clients and tools, some built first
	@$(PYTEST) -m peers --timeout=1800

proto: setup  ## regenerate the scaler's gRPC code from KEDA's protocol
	@cd src && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. \
	  penstock/scale/proto/externalscaler.proto

lock: setup  ## renew requirements/dev.txt and the checksums of the jars
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --all-extras --group dev \
	  --upgrade pyproject.toml --output-file requirements/dev.txt
	@$(BIN)/python -m tools.jars

clean:  ## remove what set-up made; data under .penstock/ stays
	@rm -rf $(VENV) src/penstock/.compiled .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
