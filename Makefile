# make demo: the main job on embedded data.  make test: all tests.  Both set up what they need, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --disable-pip-version-check -c constraints.txt
PIP := $(BIN)/python $(INSTALL)
ORACLES := .venv-oracles
SURVIVAL := .venv-survival

# Some CPUs announce bf16 instructions that their kernels cannot run; harmless elsewhere.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16

.PHONY: demo test long check oracles bench clean

demo: $(VENV)/core
	$(BIN)/regard demo

test: $(VENV)/dev
	$(BIN)/python -m pytest -n auto --dist loadfile

# What takes a minute or more by itself.
long: $(VENV)/dev
	$(BIN)/python -m pytest -m long

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

# Against timm, torchvision and MONAI, in an environment of their own: torchvision's wheel breaks others beside a CPU torch.
# Survival has one more: lifelines wants an older pandas, and scikit-survival (GPL) is for tests only.
oracles: $(ORACLES)/ready $(SURVIVAL)/ready
	REGARD_ORACLES=1 $(ORACLES)/bin/python -m pytest tests/oracles --ignore tests/oracles/test_survival.py
	REGARD_ORACLES=1 $(SURVIVAL)/bin/python -m pytest tests/oracles/test_survival.py

bench: $(VENV)/dev
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/digits.py --seeds 1

clean:
	rm -rf $(VENV) $(ORACLES) $(SURVIVAL) .pytest_cache .ruff_cache .import_linter_cache build dist

$(VENV)/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) -e '.[all,dev]'
	touch $@

$(ORACLES)/ready: pyproject.toml constraints.txt
	test -x $(ORACLES)/bin/python || $(PYTHON) -m venv $(ORACLES)
	$(ORACLES)/bin/python $(INSTALL) -e . pytest huggingface_hub PyYAML
	$(ORACLES)/bin/python $(INSTALL) --no-deps timm torchvision monai einops
	touch $@

$(SURVIVAL)/ready: pyproject.toml constraints.txt constraints-survival.txt
	test -x $(SURVIVAL)/bin/python || $(PYTHON) -m venv $(SURVIVAL)
	grep -v '^pandas==' constraints.txt > $(SURVIVAL)/constraints.txt
	$(SURVIVAL)/bin/python -m pip install --quiet --disable-pip-version-check -c $(SURVIVAL)/constraints.txt \
	  -c constraints-survival.txt -e . pytest lifelines scikit-survival torchsurv
	touch $@
