# gpuslice: every command a person needs. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Daemons start many times in demo, tests and benchmarks; without compiled modules each start costs seconds.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PY := $(VENV)/bin/python
UV ?= $(shell command -v uv 2>/dev/null || echo $(VENV)/bootstrap/bin/uv)
PYTHON ?= python3

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z][a-z -]*:.*##' $(MAKEFILE_LIST) | sed -E 's/^bench-[a-z -]*:/bench-SUBJECT:/; s/:.*## /\t/' | expand -t 18

# ---- set-up -------------------------------------------------------------------------------------

$(VENV)/bootstrap/bin/uv: # only where uv is not on PATH
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "gpuslice needs Python 3.11 or later; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { echo "Python has no venv module here: apt-get install python3-venv, or install uv" >&2; exit 1; }
	@echo "Installing uv into $(VENV)/bootstrap"
	@$(PYTHON) -m venv --without-pip $(VENV)
	@$(PYTHON) -m venv $(VENV)/bootstrap
	@$(VENV)/bootstrap/bin/pip install --quiet uv

$(VENV)/.synced: pyproject.toml uv.lock | $(filter $(VENV)/%,$(UV))
	@echo "Installing the locked Python packages into $(VENV)"
	@UV_PROJECT_ENVIRONMENT=$(VENV) $(UV) sync --locked --inexact --no-install-project --quiet --python $(PYTHON)
	@touch $@

# NVIDIA's clients live apart: numba-cuda slows the start of every Python that can see it.
CLIENTS := $(VENV)/clients
$(CLIENTS)/.synced: $(VENV)/.synced
	@echo "Installing NVIDIA's Python clients and headers, which the tests run under the shim"
	@UV_PROJECT_ENVIRONMENT=$(CLIENTS) $(UV) sync --locked --only-group clients --no-install-project --quiet --python $(PYTHON)
	@touch $@

test test-slow: export GPUSLICE_CLIENTS_PYTHON := $(abspath $(CLIENTS)/bin/python)
test test-slow: export GPUSLICE_CUDA_HEADERS = $(subst $(eval) ,:,$(wildcard $(abspath $(CLIENTS))/lib/python3.*/site-packages/nvidia/*/include))

.PHONY: build
build: $(VENV)/.synced ## Generate the protos, build the shim and the fake drivers
	@$(PY) hatch_build.py

# ---- the two commands ---------------------------------------------------------------------------

.PHONY: demo
demo: build ## Run the whole path on an embedded cluster: pods from YAML to enforced quotas
	@$(PY) -m cli demo $(ARGS)

.PHONY: test
test: build $(CLIENTS)/.synced ## Run every test that needs no root and no real cluster
	@$(PY) -m pytest -n 2 --dist loadgroup --max-worker-restart=0 $(ARGS)

# ---- slower tiers -------------------------------------------------------------------------------

.PHONY: test-cluster
test-cluster: build ## Run the tests on a real control plane, kubelet and containerd (root)
	@$(PY) -m pytest -m "cluster and not slow" -n 2 --dist loadfile --timeout 600 $(ARGS)

.PHONY: test-slow
test-slow: build $(CLIENTS)/.synced ## Run the tests that take minutes
	@$(PY) -m pytest -m slow --timeout 1800 $(ARGS)

.PHONY: test-gpu
test-gpu: build ## Run the tests that need a real NVIDIA GPU
	@$(PY) -m pytest -m gpu -rs $(ARGS)

.PHONY: bench-extender bench-allocate bench-webhook bench-shim bench-replay bench-cluster bench-transport
bench-extender bench-allocate bench-webhook bench-shim bench-replay bench-cluster bench-transport: bench-%: build ## Measure one subject: table, then one line of JSON
	@$(PY) -m bench.$* $(ARGS)

# ---- gates --------------------------------------------------------------------------------------

.PHONY: lint
lint: build ## Run every style gate
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/codespell
	git ls-files '*.c' '*.h' | xargs -r $(VENV)/bin/clang-format --dry-run -Werror

.PHONY: format
format: $(VENV)/.synced ## Format Python and C
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format --quiet .
	git ls-files '*.c' '*.h' | xargs -r $(VENV)/bin/clang-format -i

.PHONY: wheel
wheel: $(VENV)/.synced ## Build the wheel with the shim inside
	@$(UV) build --wheel --quiet && ls dist/*.whl

.PHONY: clean
clean: ## Remove everything that a build made
	@if [ -d hami_core ]; then $(MAKE) -C hami_core clean; fi
	@if [ -d simulator/drivers ]; then $(MAKE) -C simulator/drivers clean; fi
	@rm -rf build dist gpuslice/lib .pytest_cache .mypy_cache .ruff_cache
