# MODEL is any checkpoint that the commands take: a directory, a .gguf file, a hub id, synthetic:NAME or default.
MODEL ?= default
# CTX is one or more prompt lengths.
CTX ?= 256 8192
# ARMS is what rounds compares, quoted as on its command line; OUT is its file.
ARMS ?= --arm cli="--path cli" --arm engine="--path engine"
OUT ?= rounds.jsonl
# BASE is the revision that verify-regression compares this checkout with.
BASE ?= main~1
# PARALLEL is how pytest shares the default tests out: a process a core, eight at most; empty for one process.
PARALLEL ?= --numprocesses=logical --maxprocesses=8 --dist=worksteal
PYTHON ?= $(or $(shell command -v python3.11),python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The extra that brings MLX's back end: CUDA where an NVIDIA driver is, the CPU on other Linux machines, none on macOS.
ifeq ($(shell uname -s),Darwin)
  EXTRAS ?= dev
else ifneq ($(wildcard /proc/driver/nvidia/version),)
  EXTRAS ?= cuda,dev
else
  EXTRAS ?= cpu,dev
endif

.DEFAULT_GOAL := help
.PHONY: help setup engine-parity bench-engine bench-rounds families docs test test-checkpoint test-long verify-fmt \
  verify verify-regression verify-test-cuda clean

help: ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make the virtual environment in .venv and install the project (once).

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found; give PYTHON=python3.12 or another, 3.11 or newer"; exit 2; }
	@echo "installing into $(VENV) (about 1.5 GB with MLX, MKL and the tools)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

engine-parity: $(STAMP) ## Print the parity table of MODEL; ARGS adds options.
	$(BIN)/mlxcel-engine parity -m '$(MODEL)' $(ARGS)

bench-engine: $(STAMP) ## Measure every path on MODEL, at the contexts of CTX; ARGS adds options.
	$(BIN)/mlxcel-engine bench -m '$(MODEL)' $(addprefix --ctx ,$(CTX)) $(ARGS)

bench-rounds: $(STAMP) ## Compare ARMS on MODEL, at the contexts of CTX, in rounds; writes OUT (rounds.jsonl).
	$(BIN)/mlxcel-engine rounds -m '$(MODEL)' $(addprefix --ctx ,$(CTX)) $(ARMS) --out '$(OUT)' $(ARGS)

families: $(STAMP) ## Measure every model family and write docs/families.md (minutes).
	MLXCEL_SDPA_DETERMINISTIC=1 $(BIN)/python -m tests.conformance.matrix --write docs/families.md

docs: $(STAMP) ## Write docs/records.md from the record models.
	$(BIN)/python -m tests.records_page --write docs/records.md

test: $(STAMP) ## Run the default tests: no weights, no network.
	$(BIN)/pytest $(PARALLEL)

test-checkpoint: $(STAMP) ## Run the tests on the embedded default checkpoint (fetched once, then cached).
	$(BIN)/pytest -m checkpoint

test-long: $(STAMP) ## Run the tests that take minutes: memory over 20,000 steps and ticks, 200 schedules of the invariant mode.
	$(BIN)/pytest -m long

verify-fmt: $(STAMP) ## Check formatting and lint.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

verify: verify-fmt ## Check format, lint, types, and run the default tests.
	$(BIN)/mypy
	$(BIN)/pytest $(PARALLEL)

verify-regression: $(STAMP) ## Fail if this checkout decodes MODEL slower than the revision BASE (main~1).
	$(BIN)/python -m benchmarks.regression --base '$(BASE)' -m '$(MODEL)' $(ARGS)

verify-test-cuda: ## The GPU gate: run the default and the checkpoint tests on an NVIDIA GPU; exit 2 where there is none.
	@nvidia-smi -L 2>/dev/null | grep -q GPU || { echo "no NVIDIA GPU here: nvidia-smi lists none; make verify runs on the CPU"; exit 2; }
	@$(MAKE) --no-print-directory setup
	@$(BIN)/python -c 'import sys, mlxcel_engine, mlx.core as mx; sys.exit(not mx.is_available(mx.gpu))' \
	  || { echo "an NVIDIA GPU, but the MLX in $(VENV) has no CUDA: make clean, then make setup EXTRAS=cuda,dev"; exit 2; }
	MLXCEL_DEVICE=gpu $(BIN)/pytest
	MLXCEL_DEVICE=gpu $(BIN)/pytest -m checkpoint

clean: ## Remove the virtual environment and the tools' caches.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
