# Everything a newcomer needs: `make demo` and `make test`. Both set up `.venv` first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all lint docs bench clean

$(RUN): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(DEV): $(RUN)
	$(PIP) -e '.[dev,png]'
	touch $@

demo: $(RUN)
	$(BIN)/python examples/demo.py

test: $(DEV)
	$(BIN)/python -m pytest -n 2 -m 'not sweep'

test-all: $(DEV)
	$(BIN)/python -m pytest -n 2

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: $(DEV)
	$(BIN)/python docs/generate.py

bench: $(DEV)
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.against_torch
	$(BIN)/python -m benchmarks.compile_time
	$(BIN)/python -m benchmarks.compile_large

clean:
	rm -rf build $(VENV)
