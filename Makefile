# Everything that a developer or CI runs. `make` alone lists it.
#
# PYTHON=...  the interpreter to build the environment with (default: the first usable one from 3.11 on)
# VENV=...    where the environment is (default: .venv)
# WORKERS=... number of test processes (default: one more than there are cores, as tests also wait; at most 8)
# ARGS=...    more arguments for pytest, the example, or the tool
# SEEDS=...   number of seeds `make simulate` runs; FIRST=... the first one; FAULTS=... the share of failing requests
# CYCLES=...  number of processes that `make kill` kills at random moments
# SECONDS=... how long `make fuzz` and `make soak` run; STORE=... which store `make soak` uses: seaweedfs, azurite or
#             gcs_server
# SEED=...   what draws the faults of `make mutants`, COUNT=... their number
# SPARK=...  version of Spark for `make test-spark`, DJANGO=... that of Django for `make test-django`
# ROWS=... which rows `make bench` runs, PEERS=... against whom (or none), RUNS=... how many times each; OUT=... where the
#             figures go, a JSON file

PYTHON ?=
VENV ?= .venv
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)))
ARGS ?=
SEEDS ?= 2000
FIRST ?= 0
FAULTS ?=
CYCLES ?= 5000
SEED ?= 1
COUNT ?= 300
SECONDS ?= 60
STORE ?= seaweedfs
ROWS ?=
PEERS ?=
RUNS ?= 5
SPARK ?= 4.2.0
DJANGO ?= 6.1.3
CONSTRAINTS ?= constraints.txt
OUT ?= benchmarks/results.json

VERSIONS := 3.11 3.12 3.13 3.14 3.14t
BIN := $(VENV)/bin
# The environment grows by need: `make run` installs the first set, `make pipeline` the second, all else the whole one.
STAMP := $(VENV)/.installed
RUN := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-run)
PIPELINE := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-pipeline)
DOCS := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-docs)
STAMPS := $(sort $(RUN) $(PIPELINE) $(DOCS) $(STAMP))
PYTEST := $(BIN)/python -m pytest -q --numprocesses=$(WORKERS) --maxprocesses=8 --dist=loadgroup

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# PySpark comes as source. The wheel that is built of it is not compressed, which takes a third of the time.
export DIST_EXTRA_CONFIG := $(abspath .ci/wheels.cfg)
# Without bytecode on disk, every child process of the tests compiles jqueue anew, and every test process the tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run pipeline setup servers test test-wide test-full test-all test-spark test-django simulate kill soak mutants fuzz docs release-check bench lint format check check-system constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

pipeline: $(PIPELINE) ## set up and run the data pipeline on Spark, on the files of a folder; needs Java 17
	@$(BIN)/python examples/pipeline.py $(ARGS)

run: $(RUN) ## set up and run the example: checksums of a folder by several workers, one of which is killed
	@$(BIN)/python examples/checksums.py $(ARGS)

setup: $(STAMP) ## build the environment in .venv; quick if it is up to date

servers: $(STAMP) ## install Azurite, which the tests start; its tests are skipped if it cannot be installed
	@$(BIN)/python -m tests.servers.azurite

test: servers ## run the tests of every rule and every contract, in about four minutes on two cores
	@$(PYTEST) $(ARGS)

test-wide: servers ## run the tests that `make test` leaves out: more stores, older formats, Spark, processes
	@$(PYTEST) -m "wide and not full and not system" $(ARGS)

test-full: servers ## run every test, including the long ones
	@$(PYTEST) -m "" $(ARGS)

test-all: ## run the fast tests on every supported Python that is present
	@ran=""; absent=""; failed=""; \
	for version in $(VERSIONS); do \
	    if python=$$(.ci/python $$version); then \
	        echo "== Python $$version"; \
	        ran="$$ran $$version"; \
	        $(MAKE) --no-print-directory test VENV=.venv-$$version PYTHON="$$python" || failed="$$failed $$version"; \
	    else \
	        echo "== Python $$version: absent, skipped"; \
	        absent="$$absent $$version"; \
	    fi; \
	done; \
	echo "ran on:$${ran:- none}; absent:$${absent:- none}; failed on:$${failed:- none}"; \
	test -n "$$ran" && test -z "$$failed"

test-spark: ## run the tests of the pipeline on another Spark, SPARK=4.2.0: the oldest by default
	@sed 's/^pyspark==.*/pyspark==$(SPARK)/' constraints.txt > .venv-spark-$(SPARK).txt
	@$(MAKE) --no-print-directory setup VENV=.venv-spark-$(SPARK) CONSTRAINTS=.venv-spark-$(SPARK).txt
	@.venv-spark-$(SPARK)/bin/python -m pytest -q --numprocesses=2 --dist=loadgroup \
	    -m "not full and not system" tests/spark $(ARGS)

test-django: ## run the tests of tests/django on another Django, DJANGO=6.1.3: Django 6 needs Python 3.12
	@python="$(PYTHON)"; \
	if [ -z "$$python" ] && ! python=$$(.ci/python 3.12 || .ci/python 3.13 || .ci/python 3.14); then \
	    echo "Django $(DJANGO) needs Python 3.12 or newer, and none was found: its tests are skipped." >&2; \
	    exit 0; \
	fi; \
	sed 's/^Django==.*/Django==$(DJANGO)/' constraints.txt > .venv-django-$(DJANGO).txt && \
	$(MAKE) --no-print-directory setup VENV=.venv-django-$(DJANGO) CONSTRAINTS=.venv-django-$(DJANGO).txt \
	    PYTHON="$$python" EXTRAS=django,testing && \
	.venv-django-$(DJANGO)/bin/python -m pip install -q --no-compile -c .venv-django-$(DJANGO).txt hypothesis pytest-timeout sybil && \
	.venv-django-$(DJANGO)/bin/python -m pytest -q -m "not full and not system" tests/django $(ARGS)

simulate: $(STAMP) ## run many processes on one store under every fault, in virtual time, and audit them
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) $(if $(FAULTS),--faults $(FAULTS)) $(ARGS)

kill: $(STAMP) ## kill -9 processes on one file: at random moments, and at every system call of a commit
	@$(BIN)/python -m tests.soak --store file --segments --kills $(CYCLES) $(ARGS)
	@$(BIN)/python -m tests.kill --both

soak: $(STAMP) ## run processes for long on a real store that loses answers, and audit them
	@$(BIN)/python -m tests.soak --store $(STORE) --seconds $(SECONDS) $(ARGS)

mutants: $(STAMP) ## put COUNT=300 faults into domain and core, drawn by SEED=1, and count those that the tests notice
	@$(BIN)/python -m tests.mutants --seed $(SEED) --count $(COUNT) $(ARGS)

fuzz: $(STAMP) ## fuzz everything that reads bytes or arguments from outside
	@$(BIN)/python -m pip install -q --no-compile -c constraints.txt --no-build-isolation -e ".[fuzz]"
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

docs: $(DOCS) ## build the site, with the API reference, in build/site
	@$(BIN)/python -m pip install -q --no-compile -c constraints.txt --no-build-isolation -e ".[docs]"
	@$(BIN)/python -m sphinx --jobs auto --fail-on-warning --keep-going --quiet docs build/site $(ARGS)
	@echo "the site is in build/site: open build/site/index.html"

release-check: $(STAMP) ## build the distributions in dist/, and check their bytes, size, files, metadata, licences and use
	@$(BIN)/python -m pip install -q --no-compile -c constraints.txt --no-build-isolation -e ".[release]"
	@$(BIN)/python -m tests.release $(ARGS)

bench: $(STAMP) ## measure the queue against its first release, other queues, and the limits of disk and network
	@$(BIN)/python -m pip install -q --no-compile -c constraints.txt --no-build-isolation -e ".[bench]"
	@$(BIN)/python -m benchmarks $(if $(ROWS),--rows $(ROWS)) $(if $(PEERS),--peers $(PEERS)) --runs $(RUNS) --out $(OUT)

lint: $(STAMP) ## check style, format, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/typed_names.py
	$(BIN)/lint-imports

format: $(STAMP) ## sort imports and format the code
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

check: ## run lint, then the tests of `make test`, including the snippets of the docs
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test

check-system: $(STAMP) ## run the tests that need a program pip cannot install: Perl's Directory::Queue
	@perl -e "use Directory::Queue 2" 2>/dev/null || echo "skipped: Perl's Directory::Queue 2 is not installed" \
	    "(Fedora and EPEL: perl-Directory-Queue; Debian has no such package; from CPAN: cpan Directory::Queue)" >&2
	@$(PYTEST) -m system -rs tests/system $(ARGS)

# An environment whose Python is gone (a broken link) is rebuilt.
ifneq ($(shell test -x $(BIN)/python && echo usable),usable)
.PHONY: $(STAMPS)
endif

$(VENV)/.installed-run: EXTRAS := cli
$(VENV)/.installed-pipeline: EXTRAS := cli,spark
$(VENV)/.installed-docs: EXTRAS := docs,s3,gcs,azure,cli,metrics,otel,dashboard,django,testing
$(STAMP): EXTRAS := dev,examples,formats,s3,gcs,azure,cli,metrics,otel,spark,dashboard

# The pip of Python 3.11 takes twice as long as the pinned one. If that cannot be had, the old one goes on.
# Repeated whenever a declared or pinned version changes. What is imported is compiled then: to compile all packages
# takes longer than a minute.
$(STAMPS): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c "" 2>/dev/null; then \
	    python="$(PYTHON)"; \
	    if [ -z "$$python" ] && ! python=$$(.ci/python); then \
	        echo "jqueue needs Python 3.11 or newer, with venv and ensurepip, and none was found." >&2; \
	        echo "Install one (on Debian and Ubuntu, python3-venv too), or name it: make PYTHON=path/to/python3" >&2; \
	        exit 1; \
	    fi; \
	    if ! "$$python" -c "import sys; sys.exit(sys.version_info < (3, 11))"; then \
	        echo "jqueue needs Python 3.11 or newer: $$python is not." >&2; \
	        exit 1; \
	    fi; \
	    echo "Building $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv --clear $(VENV); \
	    $(BIN)/python -m pip install -q -c $(CONSTRAINTS) --upgrade pip || true; \
	fi
	@$(BIN)/python -m pip install -q --no-compile -c $(CONSTRAINTS) hatchling editables setuptools
	@$(BIN)/python -m pip install -q --no-compile -c $(CONSTRAINTS) --no-build-isolation -e ".[$(EXTRAS)]"
	@touch $@

constraints: ## pin the newest versions that pyproject.toml allows, in constraints.txt
	@python="$(PYTHON)"; test -n "$$python" || python=$$(.ci/python) && "$$python" -m venv --clear .venv-constraints
	@.venv-constraints/bin/python -m pip install -q --upgrade pip
	@.venv-constraints/bin/python -m pip install -q -e ".[dev,examples,formats,s3,gcs,azure,cli,metrics,otel,spark,fuzz,release,bench,dashboard,docs]"
	@{ sed -n '/^#/p' constraints.txt; \
	   .venv-constraints/bin/python -m pip freeze --all --exclude-editable | LC_ALL=C sort -f; } > .venv-constraints/pins
	@mv .venv-constraints/pins constraints.txt
	@rm -rf .venv-constraints

clean: ## remove environments, caches and built files
	rm -rf .venv .venv-* build dist benchmarks/.work .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .fuzz
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
