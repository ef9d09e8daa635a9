# Two commands matter: `make run` and `make test`. Everything they need, they set up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
STAMP := $(VENV)/.ready
DATA_PATH := $(VENV)/.data-path
BROWSER := $(VENV)/.browser
# Workers of the suite, which share one fleet. Three keep two cores busy: most tests wait half of their time.
PURE := -n $(or $(TEST_WORKERS),2) -m "not soak and not peers and not kafka and not spark and not browser"
REAL := -n $(or $(TEST_WORKERS),3) -m "(kafka or spark or browser) and not soak and not peers"

# Set-up leaves compiling Python's modules to their first import, which this variable would repeat every time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run check types tidy test-fast test soak test-peers proto lock clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup:  ## virtual environment, packages, Kafka's and Spark's jars, compiled data path, Chromium
	@$(MAKE) --no-print-directory --jobs=3 $(STAMP) $(DATA_PATH) $(BROWSER)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "error: $(PYTHON) is missing or older than 3.11; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "set-up: virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.packages: requirements/dev.txt pyproject.toml | $(VENV)/bin/python
	@echo "set-up: $$(grep -c == requirements/dev.txt) Python packages, about 90 seconds the first time"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMP): $(VENV)/.packages src/penstock/fleet/pom.xml src/penstock/fleet/jars.sha256 src/penstock/wire/definitions.py \
  $(wildcard src/penstock/tier/plugin/*.java) \
  src/penstock/pipeline/spark/pom.xml src/penstock/pipeline/spark/jars.sha256
	@rm -f src/penstock/wire/definitions.bin
	@echo "set-up: jars of Kafka and of Spark's connectors, with Maven, about a minute the first time"
	@$(BIN)/penstock fleet fetch
	@$(BIN)/penstock pipeline fetch
	@touch $@

# On any change, the tool checks whether the compiled code still matches its sources.
$(DATA_PATH): $(VENV)/.packages tools/compile_data_path.py $(shell find src/penstock -name '*.py')
	@echo "set-up: gateway's data path, compiled where there is a C compiler, about 30 seconds"
	@$(BIN)/python -m tools.compile_data_path
	@touch $@

$(BROWSER): $(VENV)/.packages tools/chromium.py
	@echo "set-up: Chromium for browser tests"
	@$(BIN)/python -m tools.chromium
	@touch $@

run: $(STAMP) $(DATA_PATH)  ## start the platform in the foreground; Ctrl-C stops it and keeps its data
	@$(BIN)/penstock up

check: setup  ## formatting, lint, types, import contracts, tidiness
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(MAKE) --no-print-directory --jobs=2 types tidy

types:
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

tidy:
	@$(PYTEST) -q tests/test_tidy.py

test-fast: check  ## the checks and the pure tests: no Java, about four minutes
	@$(PYTEST) $(PURE) --ignore=tests/test_tidy.py

test: test-fast  ## all of that, then the tests with real Kafka, Spark, databases and a browser
	@$(PYTEST) $(REAL)

soak: setup  ## kill-and-recover loops of ten minutes each, and properties on new examples
	@$(PYTEST) $(PURE) --hypothesis-profile=explore --timeout=1800
	@$(PYTEST) -m soak --hypothesis-profile=explore --timeout=1800

test-peers: setup  ## against other projects' clients and tools, some built first
	@$(PYTEST) -m peers --timeout=1800

proto: setup  ## regenerate the scaler's gRPC code from KEDA's protocol
	@cd src && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
	  penstock/scale/proto/externalscaler.proto

lock: setup  ## renew requirements/dev.txt and the checksums of the jars
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --all-extras --group dev \
	  --upgrade pyproject.toml --output-file requirements/dev.txt
	@$(BIN)/python -m tools.jars

clean:  ## remove what set-up made; data under .penstock/ stays
	@rm -rf $(VENV) src/penstock/.compiled .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
