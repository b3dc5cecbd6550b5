# `make run` and `make test` are all a fresh machine needs: Python 3.11 to 3.13, make and a package registry.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup run test test-exhaustive test-all lint docs bench bench-tuning reproductions clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else f"Hedgerow needs Python 3.11 to 3.13, this is {v[0]}.{v[1]}: set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --editable '.[test,bench]'
	touch $@

run: setup
	$(BIN)/hedgerow run $(addprefix examples/digits_,$(addsuffix .yaml,fedavg fedprox feddyn scaffold))
	$(BIN)/hedgerow run examples/digits_fedavg.yaml --set resources.executor=ray --set name=digits-fedavg-on-ray
	$(BIN)/hedgerow search examples/digits_hedge.yaml examples/digits_promotion.yaml

# Almost every promise once; then what takes longer: whole grids, long convergence runs, kills, browsers.
# The many processes of the tests share compiled modules, also where the environment forbids to store them.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest
# Searches of Ray Tune that have stalled next to a second test process, for a reason that is not known yet: run alone.
ALONE  := tests/searchspaces/hedge/test_scheduler.py
SHARED := --dist worksteal --ignore $(ALONE)

test: setup
	$(PYTEST) --numprocesses 2 $(SHARED) -m 'not exhaustive'
	$(PYTEST) $(ALONE) -m 'not exhaustive'

# PART=2/3 runs a third of them.
test-exhaustive: setup
	$(PYTEST) --numprocesses 2 $(SHARED) -m exhaustive $(if $(PART),--part $(PART))
	$(PYTEST) $(ALONE) -m exhaustive

test-all: test test-exhaustive

# The root *is* the package, under another folder name: mypy finds it through a link.
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p $(VENV)/typed && ln -sfn $(CURDIR) $(VENV)/typed/hedgerow
	MYPYPATH=$(VENV)/typed $(BIN)/mypy

# Into build/site, whose pages need no network.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup
	$(BIN)/python benchmarks/states.py
	$(BIN)/python benchmarks/gpu.py
	$(BIN)/python benchmarks/peers.py $(if $(DATA_ROOT),--data-root '$(DATA_ROOT)')

# Records each task once, which takes long, and replays every kind of search on the recordings. QUICK=1 uses small versions of the tasks.
bench-tuning: setup
	$(BIN)/python benchmarks/tuning.py record $(if $(DATA_ROOT),--data-root '$(DATA_ROOT)') $(if $(QUICK),--quick)
	$(BIN)/python benchmarks/tuning.py compare $(if $(QUICK),--quick)

# Claims of the sources with several seeds; continues where it was interrupted. Lines on MNIST need DATA_ROOT.
reproductions: setup
	$(BIN)/python benchmarks/reproductions.py $(if $(DATA_ROOT),--data-root '$(DATA_ROOT)')

clean:
	rm -rf $(VENV) build dist *.egg-info
