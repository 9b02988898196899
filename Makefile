# Every target sets up what it needs; nothing has to be run first.
#
#   make test ARGS="-k torn"                      arguments for the program behind a target
#   make test PYTHON=python3.13 VENV=.venv-3.13   another interpreter, beside the usual environment

SHELL := /bin/bash
.DEFAULT_GOAL := help

export PYTHON
VENV ?= .venv
EXTRAS ?= dev
ARGS ?=
# The oldest that is supported.
PYSPARK ?= 4.2.1
# The test processes: one more than cores, since many tests wait for a disk or another process.
WORKERS ?= 3
bin := $(VENV)/bin

.PHONY: help setup test test-spark demo lint lint-rules lint-format lint-types lint-imports format long bench bench-server bench-peers plot fuzz clean

help:  ## List the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:  ## Create or update the virtual environment.
	@scripts/setup $(VENV) $(EXTRAS)

test: setup  ## Run the tests, without the long ones.
	@scripts/install-test-tools
	$(bin)/python -m pytest -n $(WORKERS) --dist loadgroup tests $(ARGS)

# In an environment of its own. The usual one has the newest PySpark.
test-spark:  ## Run the tests of the Spark data source with another PySpark (PYSPARK=4.2.1).
	@echo "pyspark==$(PYSPARK)" >$(VENV)-pyspark-$(PYSPARK).constraint
	@PIP_CONSTRAINT=$(VENV)-pyspark-$(PYSPARK).constraint scripts/setup $(VENV)-pyspark-$(PYSPARK) $(EXTRAS)
	$(VENV)-pyspark-$(PYSPARK)/bin/python -m pytest -n 0 tests/spark $(ARGS)

demo: setup  ## Show the queue at work, and topics as Spark tables.
	$(bin)/python examples/demo.py $(ARGS)
	$(bin)/python examples/spark/pipeline.py

lint: lint-rules lint-format lint-types lint-imports  ## Run every linter (make -k lint: go on after a failure).

lint-rules: setup
	$(bin)/ruff check .

lint-format: setup
	$(bin)/ruff format --check .

lint-types: setup
	$(bin)/python -m mypy

lint-imports: setup
	$(bin)/lint-imports

format: setup  ## Format the code and mend what ruff can mend.
	$(bin)/ruff check --fix-only .
	$(bin)/ruff format .

long: setup  ## Run the long tests: crashes on real file systems (needs root), many examples.
	scripts/install-crash-tools
	HYPOTHESIS_PROFILE=long $(bin)/python -m pytest -n $(WORKERS) --dist loadgroup -m long tests --ignore=tests/real_disk $(ARGS)
	HYPOTHESIS_PROFILE=long $(bin)/python -m pytest -n $(WORKERS) -m long tests/real_disk $(ARGS)

# In an environment of its own, with the queues that ours is compared with: the others need not wait for them.
bench:  ## Measure.
	@scripts/setup $(VENV)-bench bench
	$(VENV)-bench/bin/python -m benchmarks.run $(ARGS)

# The servers come from Python's registry and from Debian (which needs root); one that cannot be had is reported as missing.
bench-server:  ## Measure our server against Redis, NATS and RabbitMQ.
	@scripts/setup $(VENV)-bench bench
	$(VENV)-bench/bin/python -m benchmarks.server_peers $(ARGS)

# It makes the environment itself, so that it is one command without make too.
bench-peers:  ## Measure the queue and the server against others; ARGS=--docs makes the page and its plots.
	python3 benchmarks/peers.py $(ARGS)

plot: setup  ## Make the plots of the stored results.
	$(bin)/python -m benchmarks.plot $(ARGS)

fuzz: setup  ## Throw random bytes at the decoders.
	$(bin)/python -m benchmarks.fuzz $(ARGS)

clean:  ## Remove the environment, caches and built files.
	rm -rf $(VENV) $(VENV).lock $(VENV)-bench $(VENV)-bench.lock $(VENV)-pyspark-* build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.*
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
