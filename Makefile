# make demo   sets everything up and runs the main job on shipped or synthetic data
# make test   sets everything up and runs the tests
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
ROOMS := attacks corruptions data embeddings evaluation models report solvers theory training

.PHONY: demo test lint format docs package clean

demo: $(VENV)/.ready
	$(BIN)/clcnn demo --out demo

test: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The reference, from the docstrings: site/index.html.
docs: $(VENV)/.ready-dev
	$(BIN)/pdoc --output-directory site --no-show-source clcnn $(addprefix clcnn.,$(ROOMS))

# Builds sdist and wheel, and imports the wheel from a folder of its own.
package: $(VENV)/.ready-dev
	rm -rf dist build/wheel
	$(BIN)/python -m build --outdir dist .
	$(BIN)/pip install --quiet --no-deps --target build/wheel dist/*.whl
	cd build/wheel && ../../$(BIN)/python -I -c "import sys; sys.path.insert(0, '.'); \
	import clcnn; assert 'build' in clcnn.__file__; print('wheel works:', clcnn.__version__)"

# torch goes first and by its exact version, so that nothing else chooses a build of it.
$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "found $$($(PYTHON) --version); expected Python 3.11 or newer: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV) || \
	  { echo "could not make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/pip install --quiet $(TORCH)
	touch $@

$(VENV)/.ready: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet --editable '.[all]'
	touch $@

$(VENV)/.ready-dev: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.ready

clean:
	rm -rf $(VENV) dist build demo site .pytest_cache .mypy_cache .ruff_cache .hypothesis
