# `make demo` and `make test` are all that a newcomer needs; both install first, and a second run starts at once.
PYTHON ?= python3
ARGS ?=
BENCH ?= wire
BIN := .venv/bin

.PHONY: help install demo test check format bench lock clean

help:
	@echo "make demo              install, then run the platform with sample tenants and load   (ARGS=\"--seconds 20\")"
	@echo "make test              install, then run the tests                                   (ARGS=\"-k bulk\")  "
	@echo "make install           put everything into .venv; all others do it first"
	@echo "make check             formatting, lint, types, layers"
	@echo "make format            put the code into its format"
	@echo "make bench             run a benchmark                                               (BENCH=wire ARGS=--quick)"
	@echo "make lock              pin the dependencies anew"
	@echo "make clean             remove what make created"

install:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not found: install Python 3.11 or newer, or name one with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) scripts/install.py

demo: install
	@$(BIN)/tenantry up --demo $(ARGS)

test: install
	@$(BIN)/python -m pytest $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install
	@$(BIN)/tenantry bench $(BENCH) $(ARGS)

lock: install
	$(BIN)/uv pip compile pyproject.toml --extra embedded --group dev --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --upgrade --quiet --output-file requirements.lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
