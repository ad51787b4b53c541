# Everything starts from nothing: each target makes the virtual environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal
KILLS ?= 200
CASES ?= 100000
OPTIONS ?= 20000
REQUESTS ?= 10000
AUDIT ?= 2.10.1  # version of pip-audit
JUPYTERLAB ?= 4.6.6
BENCH ?=  # --quick tries every benchmark in minutes and writes nothing

# Everything but torch is installed by hash. Which build of torch is right depends on the machine: it is pinned by version, and comes from
# pip's own index unless TORCH has other options for pip, as PyTorch's site gives them: make test TORCH='…'
TORCH ?=
PIP := $(BIN)/pip --quiet --disable-pip-version-check
LOCKED := $(PIP) install --require-hashes --no-deps --no-build-isolation

.PHONY: help demo test check torture fuzz abuse tune bench claims claims-check docs jupyter docs-table notebooks lock audit sbom clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(STAMP): pyproject.toml constraints.txt requirements/build.lock requirements/test.lock
	$(PYTHON) -m venv $(VENV)
	$(LOCKED) -r requirements/build.lock
	$(LOCKED) -r requirements/test.lock
	$(PIP) install $(TORCH) -c constraints.txt torch
	$(PIP) install --no-deps --no-build-isolation -e .
	$(PIP) check
	@touch $@

demo: $(STAMP)  ## two translators trained and looked at, in about two minutes
	$(BIN)/regard demo

test: $(STAMP)  ## everything that must hold: lint, types, all tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST)

check: $(STAMP)  ## what to run before every commit: format, lint, types, fast tests
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/mypy
	$(PYTEST) -m 'not slow' -x

torture: $(STAMP)  ## kill training runs 200 times, mostly with SIGKILL, resume them, compare the hashes; some minutes
	OMP_NUM_THREADS=1 $(BIN)/python tests/train/torture.py --kills $(KILLS)

fuzz: $(STAMP)  ## damage run directories 100,000 times, give 20,000 impossible options, change all pairs of keys of checkpoints' configs; over an hour
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz_runs.py --cases $(CASES)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz_options.py --cases $(OPTIONS)
	ALL_PAIRS=1 $(PYTEST) tests/interop/test_config_keys.py -k test_every_key

abuse: $(STAMP)  ## batter a server with 10,000 wrong requests and 1,000 slow clients: no 500, no leak, good clients all answered; some minutes
	OMP_NUM_THREADS=1 $(BIN)/python tests/serve/abuse.py --requests $(REQUESTS)

tune: $(STAMP)  ## tuning runs for the defaults of a task: make tune TASK=language DATA=folder; hours on an idle machine
	$(BIN)/python -m benchmarks.tune $(TASK) $(DATA)

bench: $(STAMP)  ## the benchmarks that need no data, on an idle machine (an hour); writes benchmarks/RESULTS.md
	$(LOCKED) -r requirements/bench.lock
	for name in exact translation decoding language serving mechanisms; do $(BIN)/python -m benchmarks.$$name $(BENCH) || exit 1; done
	$(BIN)/python -m benchmarks._common
	@echo "these need data, chromium or other programs, and say in their files how they are run: multi30k tinyshakespeare reading_esim reading_han images explorer defaults"

claims: $(STAMP)  ## run the recipes whose records are missing or stale, a process per core, and write docs/results.md; hours; goes on where it was
	$(BIN)/python docs/claims.py --run

claims-check: $(STAMP)  ## run one seed of recipes whose code has changed since their record, and compare
	$(BIN)/python docs/claims.py --check

docs: $(STAMP)  ## the documentation as a site, into site/: open site/index.html
	$(LOCKED) -r requirements/docs.lock
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebooks: $(STAMP)  ## run notebooks/ and write their outputs into them
	OMP_NUM_THREADS=1 $(BIN)/python notebooks/execute.py

jupyter: $(STAMP)  ## the notebook widget in a real JupyterLab page, in an environment of its own; needs the network and chromium
	$(BIN)/python -m venv $(VENV)/jupyter
	$(VENV)/jupyter/bin/pip install --quiet --disable-pip-version-check -c constraints.txt jupyterlab==$(JUPYTERLAB) anywidget
	$(BIN)/python -m pytest tests/look/test_jupyterlab.py

docs-table: $(STAMP)  ## write the tables of mechanisms into docs/mechanisms.md
	$(BIN)/python docs/table.py

lock: $(STAMP)  ## write requirements/*.lock, the hashes of the versions in constraints.txt; needs the network
	$(LOCKED) -r requirements/docs.lock -r requirements/bench.lock
	$(BIN)/python requirements/lock.py

audit:  ## ask the package index for known vulnerabilities of every locked version; needs the network
	@$(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit==$(AUDIT)
	@grep '^torch==' constraints.txt > $(VENV)/audit/torch.txt
	@$(VENV)/audit/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off $(addprefix -r ,$(wildcard requirements/*.lock) $(VENV)/audit/torch.txt) \
		|| { echo "make audit: a version above is vulnerable, or the package index did not answer for it (it needs the network and the JSON API, not a mirror)"; exit 1; }

sbom:  ## write sbom.json, a CycloneDX list of every locked version with its hashes
	$(PYTHON) requirements/sbom.py sbom.json

clean:  ## remove what was made
	rm -rf $(VENV) site sbom.json .pytest_cache .mypy_cache .ruff_cache
