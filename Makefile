# Everything a newcomer types. `make help` lists it; options are variables on the command line or in the environment.

OP ?= groupnorm_silu
NPROC ?=
MODEL ?=
BUDGET_MIN ?= 60
FROM ?=
ARGS ?=
# Rooms of the suite in which nothing is timed; the others' tests would see each other as foreign load.
SIDE_BY_SIDE := $(addprefix tests/,candidates report schema stats verdict)
PIP_ARGS ?=
PY ?= 3.12
PLATFORM ?= manylinux_2_28_x86_64
PACKAGES ?=

.DEFAULT_GOAL := help
.PHONY: bench e2e nightly gather test test-full test-defences calibrate docs verify lint providers wheelhouse help preflight

comma := ,

# PYTHON=python3 uses that interpreter as it is and installs nothing. Without it, .venv is made and kept up to date.
ifdef PYTHON
  RUN := PYTHONPATH=$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTHON)
  READY := preflight
else
  BASE_PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
  DEVICE := $(if $(shell nvidia-smi -L 2>/dev/null | grep GPU),gpu,cpu)
  EXTRAS := dev$(comma)e2e$(if $(filter gpu,$(DEVICE)),$(comma)cuda)
  RUN := .venv/bin/python
  READY := .venv/installed-$(DEVICE)
endif

# Set-up tools need the standard library and pip alone, so they do not wait for .venv.
PLAIN := $(or $(PYTHON),$(wildcard .venv/bin/python),$(BASE_PYTHON),python3)

bench: $(READY)  ## measure OP from manifest to verdict (NPROC: only cases of so many ranks; ARGS: options of `harness bench`)
	$(RUN) -m harness bench $(OP)$(if $(NPROC), --ranks $(NPROC)) $(ARGS)

e2e: $(READY)  ## wire OP into real models and decide (MODEL: a glob; ARGS: options of `harness e2e`)
	$(RUN) -m harness e2e $(OP) $(if $(MODEL),--model '$(MODEL)') $(ARGS)

nightly: $(READY)  ## measure what is due in BUDGET_MIN minutes (ARGS: options of `harness nightly`)
	$(RUN) -m harness nightly --minutes $(BUDGET_MIN) $(ARGS)

gather: $(READY)  ## add the evidence of another tree (FROM: its results folder)
	$(RUN) -m harness.nightly.gather '$(FROM)'

test: $(READY)  ## the test suite, no GPU needed
	@status=0; \
	$(RUN) -m pytest -q -m "not slow" -n 2 --benchmark-disable $(SIDE_BY_SIDE) || status=$$?; \
	$(RUN) -m pytest -q -m "not slow" $(addprefix --ignore=,$(SIDE_BY_SIDE)) tests || status=$$?; \
	exit $$status

test-full: $(READY)  ## the suite with its slow matrix
	$(RUN) -m pytest -q

test-defences: $(READY)  ## switch each defence off in turn and see its test go red
	$(RUN) -m tests.defences

calibrate: $(READY)  ## re-simulate the decision rule in full, writes reports/calibration.md
	$(RUN) -m harness.calibrate

docs: $(READY)  ## regenerate what is made from declarations: reports/inventory.md, docs/schema.md
	$(RUN) -m harness inventory
	$(RUN) -m harness schema --markdown > docs/schema.md

verify: $(READY)  ## recompute every verdict from results/ and compare it with reports/
	$(RUN) -m harness verify

lint: $(READY)  ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

providers:  ## fetch the upstream packages into .providers/ (PACKAGES: only these)
	$(PLAIN) -m harness.provision.providers $(PACKAGES)

wheelhouse:  ## wheels for an offline host into .wheelhouse/ (PY, PLATFORM, PACKAGES)
	$(PLAIN) -m harness.provision.wheelhouse --python $(PY) --platform $(PLATFORM) $(PACKAGES)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "  PYTHON=python3 make ... uses that interpreter as it is and installs nothing"
	@echo "  PIP_ARGS='...'          more options for pip, e.g. an index of CPU-only torch wheels"

preflight:
	@$(call new_enough,$(PYTHON))
	@$(RUN) -m harness.provision.preflight use

.venv/installed-%: pyproject.toml constraints-%.txt
	@$(call new_enough,$(or $(BASE_PYTHON),python3))
	@$(BASE_PYTHON) -m harness.provision.preflight venv
	test -x .venv/bin/python || $(BASE_PYTHON) -m venv .venv
	.venv/bin/python -m pip install --disable-pip-version-check $(PIP_ARGS) -c constraints-$*.txt -e '.[$(EXTRAS)]'
	@rm -f .venv/installed-*
	@touch $@

new_enough = $(1) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "error: Python 3.11 or newer is needed and $(1) is not one: install it, or name one with BASE_PYTHON= (for .venv) or PYTHON= (as it is)" >&2; exit 1; }
