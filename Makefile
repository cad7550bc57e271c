# The set-up is a side effect: every target installs what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FLOORS := .cache/floors
# Shape annotations are executed in the tests, but for those marked unhooked.
SHAPES := --jaxtyping-packages=opencrate.objective,opencrate.operators,opencrate.inspection,beartype.beartype
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: help setup demo denoise bench reproduce test test-slow test-gpu fuzz mutants lint format timm-suite floors docs clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(READY)  ## create .venv and install everything

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("opencrate needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/python -m uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[all]' \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	touch $(READY)

demo: $(READY)  ## train the embedded digits, and look inside: out/digits/analysis/report.html
	$(BIN)/opencrate train digits --out out/digits --evaluate-epochs 5
	$(BIN)/opencrate analyze out/digits

denoise: $(READY)  ## draw noisy tokens as they move onto their subspaces: out/denoising.png
	$(BIN)/python examples/denoising.py

bench: $(READY)  ## compare speed and memory with the pseudocode and a ViT: make bench ARGS='--quick'
	$(BIN)/python -m benchmarks $(ARGS)

reproduce: $(READY)  ## run the paper's tables and figures again: make reproduce ARGS='--scale small'
	$(BIN)/python -m reproduction $(ARGS)

test: $(READY)  ## all tests but those that need a GPU or long
	$(PYTEST) -n auto -m 'not unhooked and not gpu and not slow' $(SHAPES)
	$(PYTEST) -n auto -m 'unhooked and not gpu and not slow'
	TRITON_INTERPRET=1 $(PYTEST) -n auto -m interpreted tests/operators

test-slow: $(READY)  ## the tests that take more than 20 s each, and further cases of long tests
	$(PYTEST) -m slow

test-gpu: $(READY)  ## the tests that need a CUDA device
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "there is no CUDA device")'
	$(PYTEST) -m gpu $(TESTS)

fuzz: $(READY)  ## read 10,000 mutated files and all crafted ones: make fuzz ARGS='--count 1000 --seed 1'
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(ARGS)

mutants: $(READY)  ## change the code at 160 random places, each of which a test should notice : make mutants ARGS='--seed 1'
	$(BIN)/python -m tests.mutants $(ARGS)

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

timm-suite: $(READY)  ## timm's own tests, on every crate_* model
	$(BIN)/python tests/timm_suite.py

# In a virtual environment of its own, which is made anew when a floor changes.
floors: $(FLOORS)/.ready  ## a smoke test with the oldest version of every dependency that pyproject.toml allows
	$(FLOORS)/bin/python -P tests/smoke.py
	OMP_NUM_THREADS=1 $(FLOORS)/bin/python -m pytest -q -m 'not unhooked and not gpu and not slow' $(SHAPES) \
		tests/objective tests/recipes tests/test_imports.py
	OMP_NUM_THREADS=1 $(FLOORS)/bin/python -m pytest -q tests/checkpoints/test_hub.py

$(FLOORS)/.ready: $(READY)
	$(BIN)/python -m uv venv --quiet --clear --python $(BIN)/python $(FLOORS)
	$(BIN)/python -m uv pip install --quiet --resolution lowest-direct --python $(FLOORS)/bin/python --editable '.[all]'
	touch $@

# Notebooks are run each time: what they show is that of the code beside them.
docs: $(READY)  ## build the site, with its notebooks, in some minutes: out/site/index.html
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -b html -W --keep-going -E docs out/site

clean:  ## remove what the targets made
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache out
