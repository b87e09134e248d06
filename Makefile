# Needs GNU make and python3 >= 3.11; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MPIRUN = $(shell command -v mpirun || echo $(BIN)/mpirun)
DEMO := build/demo
COMMA := ,
PARALLEL := -rs -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder
TOOLS := build/tools
# An MPI of the machine is preferred; without one, PyPI's MPICH goes into .venv.
EXTRAS = dev$(if $(shell command -v mpirun),,$(COMMA)mpich)

DEMO_MODEL ?= wresnet-14-2
DEMO_BATCH ?= 64
DEMO_STEPS ?= 20
DEMO_WORKERS := 8

# OpenMPI refuses root, and more ranks than cores, without these; other MPIs do not read them.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help install lock sbom demo test test-sample test-all results docs lint types gpu-check clean

help:
	@echo "make install    create .venv and install the project with its tools into it"
	@echo "make lock       write requirements.lock: the versions that install takes, with hashes"
	@echo "make sbom       write build/sbom.cdx.json: what is installed, as CycloneDX"
	@echo "make demo       plan a small wide ResNet for 8 workers, calibrate this machine, simulate, train, compare"
	@echo "make test       what a change may break, in minutes; make test-sample: a few cases of every test"
	@echo "make test-all   every test that needs no GPU"
	@echo "make results    make every experiment under results/ anew"
	@echo "make docs       build the documents' site into build/site"
	@echo "make gpu-check  every test that needs a GPU; fails where there is none"
	@echo "make lint types ruff; mypy --strict"
	@echo "make clean      remove .venv and what was built"

install: $(STAMP)

$(STAMP): pyproject.toml requirements.lock $(wildcard extras/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit("python3 >= 3.11 is needed, found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(LOCKED),$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.lock)
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]' $(foreach extra,$(wildcard extras/*),--editable $(extra))
	touch $(STAMP)

lock:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet 'pip-tools>=7,<8'
	CUSTOM_COMPILE_COMMAND='make lock' $(TOOLS)/bin/pip-compile --quiet --extra dev --strip-extras --generate-hashes --no-emit-index-url --no-emit-find-links --no-allow-unsafe --unsafe-package tensor-partitioner --output-file requirements.lock pyproject.toml

sbom: install
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet 'cyclonedx-bom>=7,<8'
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file build/sbom.cdx.json $(BIN)/python

demo: install
	@mkdir -p $(DEMO)
	$(BIN)/plan $(DEMO_MODEL) --batch $(DEMO_BATCH) --image 8 --channels 1 --classes 10 --workers $(DEMO_WORKERS) -o $(DEMO)/plan.json > $(DEMO)/plan.txt
	@grep -E 'weights|workers|bytes per iteration|data parallelism|search took' $(DEMO)/plan.txt | head -n 6
	$(MPIRUN) -n $(DEMO_WORKERS) $(BIN)/calibrate $(DEMO)/plan.json --only-plans --seconds 20 -o $(DEMO)/this_machine.yaml > $(DEMO)/calibrated.txt
	COLUMNS=1000 $(BIN)/simulate $(DEMO)/plan.json --topo $(DEMO)/this_machine.yaml --tasks --json $(DEMO)/predicted.json > $(DEMO)/predicted.txt
	@tail -n 1 $(DEMO)/predicted.txt
	COLUMNS=1000 $(MPIRUN) -n $(DEMO_WORKERS) $(BIN)/execute $(DEMO)/plan.json --data digits --steps $(DEMO_STEPS) --tasks --json $(DEMO)/executed.json > $(DEMO)/executed.txt
	@tail -n 1 $(DEMO)/executed.txt
	@$(BIN)/compare --tasks $(DEMO)/predicted.json $(DEMO)/executed.json > $(DEMO)/tasks.txt
	@echo "All that the commands say: $(DEMO)/*.txt; the plan, explained: plan $(DEMO)/plan.json --explain"
	$(BIN)/compare $(DEMO)/predicted.json $(DEMO)/executed.json

test: install
	$(BIN)/python -m pytest -m "not gpu and not slow" $(PARALLEL)

test-sample: install
	$(BIN)/python -m pytest -m "not gpu" --sample 1 $(PARALLEL)

test-all: install
	$(BIN)/python -m pytest -m "not gpu" $(PARALLEL)

results: install
	$(BIN)/python -m results

docs: install
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

gpu-check: install
	$(BIN)/python -m pytest -m gpu --require-gpu -rs

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
