# "make help" lists what there is to make.

VENV ?= .venv
PYTHON ?= python3.13 python3.12 python3.11 python3
python := $(VENV)/bin/python
pip := $(python) -m pip --disable-pip-version-check --quiet
# Tests start many processes, each of which would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test nightly worlds golden lab lab-vllm lab-kubernetes lab-llama e2e lint docs bench clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

demo: $(VENV)/installed ## watch a simulated vLLM, for two minutes
	$(VENV)/bin/specwatch demo

test: $(VENV)/installed-dev ## the fast tests
	$(python) -m tests $(ARGS)

golden: $(VENV)/installed-dev ## rewrite the files of tests/golden as they are rendered now
	$(python) -m tests --golden -m golden $(ARGS)

nightly: $(VENV)/installed-dev ## statistics and scale, and more examples of each property
	$(python) -m tests --hypothesis-profile nightly --nightly $(ARGS)

worlds: $(VENV)/installed-dev ## how the guard decides in simulated worlds, as a table; takes hours
	$(python) -m tests.worlds --nice 10 $(ARGS)

lab: lab-vllm lab-kubernetes lab-llama ## install what e2e needs: a CPU vLLM, AIPerf, tiny models, Kubernetes, llama-server (5 GB)

lab-vllm: $(VENV)/installed-dev
	$(python) -m tests.lab.vllm_install

lab-kubernetes: $(VENV)/installed-dev
	$(python) -m tests.lab.kubernetes_cluster

# The models are written from those of vLLM.
lab-llama: $(VENV)/installed-dev
	$(python) -m tests.lab.llama_server

e2e: $(VENV)/installed-dev ## the tests against a real vLLM, which they install, and systemd
	SPECWATCH_E2E_INSTALL=1 $(python) -m tests.e2e $(ARGS)

lint: $(VENV)/installed-dev ## ruff, mypy, and whether the generated files are current
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(python) -m mypy
	for each in systemd dashboards alerts kubernetes reference; do \
	    $(VENV)/bin/specwatch generate $$each --check || exit 1; \
	done

docs: $(VENV)/installed-docs ## build the manual in build/manual
	NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --strict

bench: $(VENV)/installed-dev ## measure speed, memory and disk use, three times; prints a table
	$(python) -m tests.benchmarks --runs 3 $(ARGS)

clean: ## remove what was made here; the lab's vLLM stays in the cache folder
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find . -name __pycache__ -prune -exec rm -rf {} +

# A name on the PATH may be a launcher that does not run, so each candidate is asked.
$(VENV)/created:
	@for candidate in $(PYTHON); do \
	    if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then \
	        found=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "specwatch needs Python 3.11 or later, and none of these is that: $(PYTHON)" >&2; \
	    echo "(python3 is $$(python3 --version 2>&1 | head -n 1))." >&2; \
	    echo "Install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; \
	fi; \
	if ! $$found -c 'import venv, ensurepip' 2> /dev/null; then \
	    echo "$$found has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; \
	    exit 1; \
	fi; \
	$$found -m venv --clear $(VENV)
	@touch $@

$(VENV)/installed: pyproject.toml tap/pyproject.toml $(VENV)/created
	@echo "installing specwatch into $(VENV)"
	@$(pip) install --editable ./tap --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml tap/pyproject.toml $(VENV)/created
	@echo "installing specwatch and its tests into $(VENV)"
	@$(pip) install --editable ./tap --editable '.[test,lint]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-docs: pyproject.toml tap/pyproject.toml $(VENV)/created
	@echo "installing what builds the manual into $(VENV)"
	@$(pip) install --editable ./tap --editable '.[docs]'
	@touch $@
