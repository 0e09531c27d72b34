# make setup   .venv with everything, Horovod built once; does nothing the second time
# make demo    two workers train on real handwritten digits
# make check   lint, types and the tests that start no processes: before each commit
# make test    all tests but the slow ones; make test-all: those too
# make test-versions   a part of the tests on older TensorFlow, on other Pythons, and on pre-releases
# make conformance   TensorFlow's and Keras's own tests of strategies, over stock ones and ours
# make benchmarks   this package and its peers in turn, on an idle machine; CASE=mirrored is one of them,
#                   OPTIONS="--rounds 5" go to the case; PyTorch, Paddle and TFRA get environments of
#                   their own, in .venv-peers
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

.PHONY: setup demo check test test-all test-versions conformance benchmarks compatibility docs dist faults lint types format clean

setup: .venv/.ready

.venv/.ready: setup.py constraints.txt tf_config/horovod/wheel.py
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
	$(BIN)/python -m pytest $(PARALLEL) -m ""

test-versions: setup
	$(BIN)/python tools/versions.py

conformance: setup
	$(BIN)/python -m pytest -m "" tests/conformance

# The program of a case that has not its name, and what a case takes beside what all of them do.
PROGRAM_OF_rows := embedding.py rows
OPTIONS_OF_rows := --optimizers Adam
PROGRAM_OF_click_model_adam := click_model.py
OPTIONS_OF_click_model_adam := --optimizer adam
PROGRAM_OF_tiny := embedding.py tiny
OPTIONS_OF_tiny := --workers 1
# Peers that have an environment of their own, where they can be installed.
PEERS_OF_all_reduce := torch
PEERS_OF_mirrored := torch
PEERS_OF_rows := torch tfra
PEERS_OF_tiny := torch
PEERS_OF_embedding := torch tfra
PEERS_OF_click_model := paddle
PEERS_OF_click_model_adam := paddle
PACKAGES_OF_torch := torch==2.13.0 numpy
PACKAGES_OF_tfra := tensorflow-recommenders-addons==0.8.1 tensorflow==2.16.2 tf_keras==2.16.0
PACKAGES_OF_paddle := paddlepaddle==2.6.2 'protobuf<5' 'numpy<2' setuptools
CASES := all_reduce two_hosts mirrored click_model rows tiny start
CASE ?= $(CASES)
PEERS := $(sort $(foreach case,$(CASE),$(PEERS_OF_$(case))))
# More cases, by their name alone.
OPTIONS_OF_scaling := --rounds 2 --json build/scaling.json docs/images/scaling.svg
OPTIONS_OF_step := build/step.svg
MORE_CASES := click_model_adam parameter_server embedding onednn scaling shared_memory step
# Those whose numbers become a picture.
CASES_OF_PICTURES := $(CASES) click_model_adam parameter_server

benchmarks: setup $(PEERS:%=.venv-peers/%/.ready)
	@test -z "$(filter-out $(CASES) $(MORE_CASES),$(CASE))" || { \
		echo "CASE is of: $(CASES) $(MORE_CASES)." \
		"Received: $(filter-out $(CASES) $(MORE_CASES),$(CASE))."; exit 2; }
	failed=; $(foreach case,$(CASE),$(BIN)/python benchmarks/$(or $(PROGRAM_OF_$(case)),$(case).py) \
		$(OPTIONS_OF_$(case)) $(OPTIONS) \
		$(foreach peer,$(PEERS_OF_$(case)),$$(test -e .venv-peers/$(peer)/.ready && \
		echo --$(peer) .venv-peers/$(peer)/bin/python)) \
		$(if $(filter $(case),$(CASES_OF_PICTURES)),--json build/benchmarks/$(case).json) || failed+=' $(case)';) \
	for file in build/benchmarks/*.json; do test ! -e $$file || $(BIN)/python benchmarks/plot.py \
		$$file docs/images/$$(basename $$file .json).svg || exit; done; \
	test -z "$$failed" || { echo "These cases failed:$$failed."; exit 1; }

$(PEERS:%=.venv-peers/%/.ready): .venv-peers/%/.ready:
	$(PYTHON) -m venv .venv-peers/$*
	.venv-peers/$*/bin/pip install --quiet --disable-pip-version-check $(PACKAGES_OF_$*) && touch $@ || \
		echo "Left out of the benchmarks: $*, which cannot be installed here."

compatibility: setup
	mkdir -p docs
	$(BIN)/python tools/compatibility.py > docs/compatibility.md

# Nothing of the package is imported for it, so no TensorFlow is needed.
docs: .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

.venv-docs/.ready: setup.py constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
		mkdocs mkdocs-material "mkdocstrings[python]"
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
	$(BIN)/python tools/faults.py $(if $(SHORT),--short) $(addprefix --seed ,$(SEED))

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
