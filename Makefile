# One door to everything. `make help` lists the targets.
# Needs Python 3.11 or newer and make; the virtual environment is made on first use and again when pyproject.toml or the C sources change.

VENV   ?= .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.roquet-core
STAMP  := $(VENV)/.roquet-installed
SITE   := $(VENV)/.roquet-site
# Of the package: its list of dependencies, and what is compiled if there is a compiler.
INPUTS := pyproject.toml setup.py $(wildcard src/roquet/speedups/*.c src/roquet/speedups/*.h)
ARGS   ?=
# The first interpreter that is new enough and can make a virtual environment. `make PYTHON=/path/to/python` overrides.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$python; break; fi; done)

.DEFAULT_GOAL := help
.PHONY: help java faketime services databases up demo test test-spark quick mutants sanitize check interop bench bench-spark exactly-once sim chaos docs site tour clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

# Roquet alone, for those who want to run it: some 30 MB.
$(CORE): $(INPUTS)
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer with venv and ensurepip found. Install one (Debian: apt install python3.11-venv) or run make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "make: preparing $(VENV) with $$($(PYTHON) --version) (once, and again when pyproject.toml or the C sources change)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "make: installing Roquet and the five packages that it needs (30 MB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@$(BIN)/python -m compileall -q src/roquet # an editable installation leaves that to the first start, which takes twice as long
	@touch $@

# And what tests, checks and benchmarks need besides.
$(STAMP): $(INPUTS) | $(CORE)
	@echo "make: installing what development needs: Spark, Delta Lake, pytest, mypy and others (1.2 GB)"
	@$(BIN)/python -m pip install --disable-pip-version-check --editable ".[dev]"
	@touch $(CORE) $@

up: $(CORE) ## name server and broker until Ctrl-C; data in ./data (ARGS="--shards 2" and other options of roquet up)
	@$(BIN)/roquet up $(ARGS)

java: $(STAMP)
	@$(BIN)/python -m roquet.spark.java --install > /dev/null && $(BIN)/python -m tests.small_jvm || echo "make: going on without Spark; what needs it is left out"

demo: $(CORE) ## the real thing on free ports with a temporary store; installs Spark for its last chapter while the others run
	@$(BIN)/python demo/run.py --install-spark $(ARGS)

faketime: # for tests that set the clock of a running broker
	@find /usr/lib /usr/lib64 /usr/local/lib -name libfaketimeMT.so.1 2> /dev/null | grep -q . || \
	{ test "$$(id -u)" = 0 && command -v apt-get > /dev/null && apt-get update -qq > /dev/null 2>&1; \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libfaketime > /dev/null 2>&1; } || \
	echo "make: no libfaketime (Debian: apt-get install libfaketime); tests that set the clock of a running broker are left out"

databases: $(STAMP) # for tests that need a server; unpacked from Debian's packages, and nothing of the system is touched
	@$(BIN)/python -m tests.services --install

services: $(STAMP) ## PostgreSQL, MariaDB and Redis on free ports with temporary data, as the tests use them, until Ctrl-C
	@$(BIN)/python -m tests.services

test: $(STAMP) faketime databases ## every test but those of Spark, in eight runs beside each other (ARGS="-k supervisor" and other options of pytest: in one)
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m tests.lanes
else
	$(BIN)/python -m pytest $(ARGS)
endif

quick: $(STAMP) ## the tests that end in a minute on two cores, and what was left out
	@$(BIN)/python -m tests.lanes --quick

test-spark: $(STAMP) java ## the tests of the Spark extra, which need Java: sources, sinks, pipelines, the demo, the tour, and clusters whose members are killed
	@$(BIN)/python -m tests.lanes --spark

mutants: $(STAMP) ## faults of one line in a copy of the sources, each killed by its named test (ARGS="store/queue" and other words choose)
	@$(BIN)/python -m tests.mutants.run $(ARGS)

# Python's own allocator hides small overruns, so it is left out; Python itself leaks at its end, so leaks are not looked for.
SANITIZED = LD_PRELOAD=$$($(or $(CC),cc) -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	PYTHONPATH=build/sanitized/lib:. $(BIN)/python
sanitize: $(STAMP) ## the extension built with the address and undefined-behaviour sanitizers, and fuzzed against Python (ARGS="READS SEED...")
	@ROQUET_SANITIZE=1 $(BIN)/python setup.py --quiet build --build-base build/sanitized --build-lib build/sanitized/lib
	@ls build/sanitized/lib/roquet/speedups/_native*.so > /dev/null || { echo "make: the extension could not be built"; exit 1; }
	$(SANITIZED) -m tests.broker.fuzzed_sends $(or $(ARGS),400 1 2 3 4)
	$(SANITIZED) -m pytest -p no:cacheprovider tests/broker/test_gather.py tests/broker/test_answer_pulls.py tests/broker/test_pull_runs.py tests/broker/test_stored.py tests/broker/test_sql_columns.py tests/wire/test_cut_frames.py tests/wire/test_client_columns.py tests/wire/test_pull_shapes.py tests/store/test_apply_many.py tests/store/test_index.py

check: $(STAMP) ## ruff and mypy (strict)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --quiet --check .
	$(BIN)/python -m mypy
	MYPYPATH=demo:. $(BIN)/python -m mypy demo examples docs soak chaos
	MYPYPATH=interop $(BIN)/python -m mypy interop
	MYPYPATH=bench:interop $(BIN)/python -m mypy bench/*.py
	MYPYPATH=bench/spark:bench:interop $(BIN)/python -m mypy bench/spark

interop: $(STAMP) ## real foreign clients against Roquet; needs Java, Maven and Go, and skips by name what is missing
	$(BIN)/python interop/run.py $(ARGS)

bench: $(STAMP) ## Apache RocketMQ and Roquet in turn under the same load; needs Java and Maven
	$(BIN)/python bench/run.py $(ARGS)

bench-spark: $(STAMP) ## Spark over Kafka and over Roquet in turn, the same records; needs Java and Maven (ARGS=--quick: a fifth of the records)
	$(BIN)/python bench/spark/run.py $(ARGS)

exactly-once: $(STAMP) java ## the archive under kill -9 of driver, executor and broker, 30 rounds (ARGS="--format delta --seed 1"; soak/README.md)
	$(BIN)/python -m soak.exactly_once $(ARGS)

sim: $(STAMP) ## whole groups of brokers with clients from seeds, and what goes wrong in them (ARGS="--seeds 0:10000 --shape dledger")
	@$(BIN)/python -m roquet.testing.groups $(ARGS)

chaos: $(STAMP) ## real servers under load while machines, networks and disks fail; needs root (ARGS="--group dledger --minutes 10"; chaos/README.md)
	$(BIN)/python -m chaos.run $(ARGS)

docs: $(STAMP) ## write docs/configuration.md from the settings tables, and docs/api.md from the docstrings
	$(BIN)/python -m roquet.cli.reference > docs/configuration.md
	$(BIN)/python docs/api_page.py > docs/api.md

$(SITE): pyproject.toml | $(CORE)
	@echo "make: installing mkdocs-material"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	@touch $(CORE) $@

site: $(SITE) ## all documents as a web site in build/site; a link that leads nowhere is an error
	@$(BIN)/python docs/site.py build/site-sources
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "make: open build/site/index.html"

tour: $(STAMP) java ## run examples/tour.py, a notebook with Spark, and write docs/tour.md with its output and plots
	$(BIN)/python docs/notebook.py examples/tour.py docs/tour.md

clean: ## remove what make made: the virtual environment, caches, build output; never ./data
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf "$${ROQUET_SERVICES:-/var/tmp/roquet-services-$$(id -u)}"
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
