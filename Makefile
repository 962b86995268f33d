# Every target sets up what it needs first; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo test thorough faults kills protocol fuzz conformance record record-debezium check docs fmt bench up down ui

CACHE := $(or $(TIDETABLE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tidetable)
# Any uv on PATH, else one of our own beside the jars. The redirection makes make ask a shell, which knows `command`.
UV := $(or $(shell command -v uv 2>/dev/null),$(CACHE)/uv/bin/uv)
BIN := .venv/bin
READY := .venv/.ready
# The folders whose tests take seconds.
FAST := $(wildcard tests/topology tests/operators)

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Install the Python packages, look for Java, fetch the jars; quick when nothing changed

demo: $(READY) ## A whole topology at work, on a broker and an engine of its own
	$(BIN)/python -m dagster_project.demo

test: $(READY) ## The tests, on two workers, half an hour to an hour; ARGS="tests/engine -k land" picks some
	$(BIN)/pytest -n 2 -m "not thorough" $(ARGS)

thorough: $(READY) ## These and the longer ones, which CI does not run
	$(BIN)/pytest -n 2 $(ARGS)

faults: $(READY) ## The kill matrix, all of it, and docs/reliability.md from it, two hours; ARGS="--resume" goes on
	$(BIN)/python -m tests.faults $(ARGS)

kills: $(READY) ## Fifty random kills in a row, from topic to topic, about an hour
	TIDETABLE_FAULTS=1 $(BIN)/pytest tests/faults/test_random_kills.py tests/faults/test_leader_kills.py tests/faults/test_debezium_kills.py $(ARGS)

protocol: $(READY) ## Play 100,000 schedules of commits, crashes and late writers in memory, some two minutes; ARGS="--seed 7" tells one
	$(BIN)/python -m tests.protocol $(ARGS)

conformance: $(READY) ## Compare random tables with Kafka Streams, live, some 20 minutes; needs a JDK; ARGS="--cases 50" asks less
	$(BIN)/python -m tests.conformance $(ARGS)

record: $(READY) ## Ask Kafka Streams anew for the tables that `make test` compares ours with; needs a JDK
	$(BIN)/python -m tests.conformance --record

record-debezium: $(READY) ## Record anew what Debezium makes of tests/debezium/*.sql, some two minutes; needs a JDK and PostgreSQL 15
	$(BIN)/python -m tests.debezium $(ARGS)

fuzz: $(READY) ## The laws on 50,000 worlds: operators over operators, random plans; and 2,000 for each kind of stream and window
	TIDETABLE_FUZZ=50000 $(BIN)/pytest tests/laws/test_programs.py tests/laws/test_stream_laws.py tests/laws/test_window_laws.py $(ARGS)

check: $(READY) ## Format, lint, types, layers, links of the documentation, the fast tests: before every commit
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/pytest $(FAST)

docs: $(READY) ## The documentation site, in site/; ARGS="serve" shows it at http://127.0.0.1:8000 and follows its pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build --strict)

fmt: $(READY) ## Format the code and mend what ruff can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(READY) ## Measure, on this machine; ARGS="--only growing" picks a case
	$(BIN)/python -m tests.benchmarks $(ARGS)

up: $(READY) ## Start the engine and the broker of the lake
	$(BIN)/tidetable up

down: $(READY) ## Stop them
	$(BIN)/tidetable down

ui: $(READY) ## Dagster's pages, at http://127.0.0.1:3000
	$(BIN)/dagster dev -w workspace.yaml

$(READY): pyproject.toml uv.lock resources/jars/checksums.txt | $(UV)
	$(UV) sync --frozen
	$(BIN)/python -m resources.jars
	@touch $@

$(CACHE)/uv/bin/uv:
	python3 -m venv $(CACHE)/uv
	$(CACHE)/uv/bin/pip install --quiet uv
