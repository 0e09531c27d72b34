# make setup   .venv with everything, Horovod built once; does nothing the second time
# make demo    two workers train on real handwritten digits
# make check   lint, types and the tests that start no processes: before each commit
# make test    all tests but the slow ones; make test-all: those too, but for make conformance
# make test-versions   a part of the tests on older TensorFlow, on other Pythons, and on pre-releases
# make conformance   TensorFlow's and Keras's own tests of strategies, over stock ones and ours
# make gpu-lookalike   every strategy and mode on devices that look like GPUs; see docs/gpus.md
# make benchmarks   this package and its peers in turn, on an idle machine; CASE="mirrored rows" are two
#                   of them, OPTIONS="--rounds 5" go to each, "--before ../earlier" also runs
#                   the package of another checkout
# make compatibility   what works under which strategy, stock TensorFlow's too, into docs/compatibility.md
# make docs    README and docs/ as a site in site/, with the API reference; warnings are errors
# make dist    the source distribution and the wheel of what is committed, into dist/
# make faults   kills workers, damages files and feeds wrong inputs: what came of it; SHORT=1, SEED=N
# make lint, make types, make format

SHELL := /bin/bash
BIN := .venv/bin
SUPPORTED := import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3; do \
	$$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && break; done)

# Files in the order of tests/conftest.py, the long ones first.
# Of three at once one often waits, for a timeout or another process.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: setup demo check test test-all test-versions gpu-lookalike conformance benchmarks compatibility docs dist faults lint types format clean

setup: .venv/.ready

.venv/.ready: setup.py constraints.txt tf_config/horovod/wheel.py tf_config/horovod/cuda.py
	@test -n "$(PYTHON)" || { echo "make setup needs Python 3.10 to 3.13 with its venv module." \
		"Received: none on the PATH. Install one, or name it: make setup PYTHON=..."; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt pip setuptools wheel
	$(BIN)/pip install --disable-pip-version-check --no-build-isolation -c constraints.txt \
		-e ".[examples,test,lint]"
	MAKEFLAGS= PIP_CONSTRAINT=constraints.txt $(BIN)/tf-config install-horovod
	touch $@

demo: setup
	$(BIN)/tf-config run --workers 2 examples/digits.py

check: lint types
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not processes and not training"

# On some processors TensorFlow takes oneDNN by default, on others not. It is left out of the one
# and taken for the other, everywhere alike; building its kernels is a tenth of a short test's work.
test: export TF_ENABLE_ONEDNN_OPTS ?= 0
test: setup
	$(BIN)/python -m pytest $(PARALLEL)

test-all: export TF_ENABLE_ONEDNN_OPTS ?= 1
test-all: setup
	$(BIN)/python -m pytest $(PARALLEL) -m "" --ignore tests/conformance

test-versions: setup
	$(BIN)/python tools/versions.py

gpu-lookalike: setup
	$(BIN)/python -m pytest -m "" tests/gpu_lookalike

conformance: setup
	$(BIN)/python -m pytest -m "" tests/conformance

benchmarks: setup
	$(BIN)/python -m benchmarks $(CASE) $(OPTIONS)

compatibility: setup
	mkdir -p docs
	$(BIN)/python tools/compatibility.py > docs/compatibility.md

# Nothing of the package is imported for it, so no TensorFlow is needed.
docs: .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

.venv-docs/.ready: setup.py constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
		mkdocs mkdocs-material "mkdocstrings[python]" ruff
	touch $@

# The wheel is made of the source distribution, which so proves to be enough.
dist: setup
	rm -rf dist build/source && mkdir -p dist build/source
	git archive HEAD | tar -x -C build/source
	cd build/source && $(CURDIR)/$(BIN)/python -c \
		"from setuptools import build_meta; build_meta.build_sdist('$(CURDIR)/dist')" >/dev/null
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
		--wheel-dir dist dist/*.tar.gz

faults: setup
	$(BIN)/python -m tests.faults.run $(if $(SHORT),--short) $(addprefix --seed ,$(SEED))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint docker/*.Dockerfile examples/kubernetes/Dockerfile

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-docs .venv-peers build dist site *.egg-info
