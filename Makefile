# `make demo` and `make test` need nothing before them: both do the set-up first.
SHELL := /bin/bash

.PHONY: demo test setup lint clean

demo: setup
	@.venv/bin/python scripts/demo.py

test: export WITH_BROWSER = 1
test: setup
	@.venv/bin/python -m pytest $(ARGS)

setup:
	@scripts/setup.sh

lint: setup
	@.venv/bin/ruff check src tests scripts
	@.venv/bin/ruff format --check src tests scripts
	@.venv/bin/lint-imports

clean:
	rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache
