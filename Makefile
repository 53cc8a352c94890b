# Every target installs what it needs and does nothing twice. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
# The C sources of shims are part of the module: see crates/py/src/shim.rs.
RUST_SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) $(wildcard shim/*/*.[ch])

LAB ?= lab
TOPOLOGY ?= paper
BENCH ?= rules switching probes backplane mixes foresee collision pfsim-oracle mapping sim-speed sim-scale simgrid \
  ost-contention profiler sim-accuracy walk catalog catalog-scale agent straggler shared-storage loader-count first-batch nurion restripe \
  copy copy-striped copy-crash dedup wan-path wan-loopback wan-loss wan-patterns \
  wan-start wan-fairness wan-files wan-compress wan-crash staging-crash wan-reorder probe proxy flow-cost staging-slurm many-nodes coupling \
  collective collective-cost elastic-io io-schedule io-crash write-behind loader-small python-loader cli-start copy-estimate view \
  allreduce rank-order bcast primitives tags mpi-jobs

.PHONY: help demo test test-all test-delayed lint build lab-up lab-down lab-test bench bench-quick fuzz audit docs dist lock clean packages test-packages

help: ## List the targets.
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

demo: build ## Run the main job in an emulated cluster and compare policies (root; under 4 minutes).
	@$(BIN)/waystage run experiments/demo.yaml --on lab

test: build test-packages ## Format, lint, types, unit and lab tests.
	@scripts/test

test-all: build test-packages ## The same with new random inputs, and with PyTorch in .venv: some 3 GB, see scripts/torch.
	@scripts/torch
	@WAYSTAGE_RANDOM_TESTS=1 scripts/test

test-delayed: build test-packages ## make test with random delays of threads and processes, to show races (root).
	@$(BIN)/python scripts/delays.py -- scripts/test

lint: build ## Format, lint and types only.
	@scripts/lint

build: packages ## Make .venv and install everything into it.
	@scripts/serialised $(MAKE) --no-print-directory --silent .build/installed

lab-up: build ## Bring up an emulated cluster: make lab-up TOPOLOGY=paper LAB=lab.
	@$(BIN)/waystage lab up $(TOPOLOGY) --name $(LAB)

lab-down: build ## Take it down.
	@$(BIN)/waystage lab down --name $(LAB)

lab-test: build test-packages ## Only the tests that bring up clusters (root).
	@$(BIN)/pytest -m lab

bench: build test-packages ## Run the benchmarks: make bench BENCH="rules switching"; results under results/bench.
	@scripts/bench $(BENCH)

bench-quick: build test-packages ## Run all benchmarks as smoke runs, 30 minutes in all; BENCH="..." chooses.
	@scripts/bench --quick $(BENCH)

fuzz: build ## Feed the parsers of foreign bytes with far more random input than `make test` does.
	@WAYSTAGE_FUZZ_EXAMPLES=$${WAYSTAGE_FUZZ_EXAMPLES:-20000} $(BIN)/pytest fuzz

audit: ## Compare the locked packages with known advisories; needs the network or an advisory database, so no part of `make test`.
	@scripts/audit

docs: build ## Write the generated pages of docs/reference, and the man pages.
	@$(BIN)/python scripts/write_cli_reference.py
	@$(BIN)/python scripts/write_python_reference.py
	@$(BIN)/python scripts/write_man_pages.py .build/man/man1

dist: build ## Pack the sources, build the wheel from them, and check both: the last lines give its platform tag.
	@scripts/dist

lock: ## Resolve the dependencies anew and write requirements.lock.
	@PYTHON=$(PYTHON) scripts/lock

clean: ## Remove everything that was built; results stay.
	@rm -rf .venv .build target python/waystage/_native*.so python/waystage/data/lib \
	  python/waystage/data/third-party-notices.txt waystage._native.data dist

packages:
	@scripts/packages

test-packages:
	@scripts/packages tests

# -- what `build` makes, each stamped ----------------------------------------------------------------

.build/venv: requirements.lock
	@mkdir -p .build
	@PYTHON=$(PYTHON) scripts/venv
	@touch $@

.build/installed: .build/venv pyproject.toml Cargo.toml Cargo.lock $(RUST_SOURCES) scripts/library
	@scripts/install
	@touch $@
