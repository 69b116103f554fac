# Every target works in a fresh clone: it makes .venv first, and again whenever pyproject.toml changed.

PYTHON ?= python3
VENV := .venv
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

$(VENV)/.shop-installed: $(VENV)/.installed examples/shop/pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e examples/shop
	touch $@

demo: $(VENV)/.shop-installed
	$(BIN)/python -m shop.demo

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
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
