# make demo: the main job on embedded data.  make test: all tests.  Both set up what they need, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

# Some CPUs announce bf16 instructions that their kernels cannot run; harmless elsewhere.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16

.PHONY: demo test check bench clean

demo: $(VENV)/core
	$(BIN)/regard demo

test: $(VENV)/dev
	$(BIN)/python -m pytest

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

bench: $(VENV)/dev
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/digits.py --seeds 1

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache build dist

$(VENV)/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) -e '.[all,dev]'
	touch $@
