# make run: the whole pipeline on a fabric of real packets.  make test: the whole suite.  make help: the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=
JOBS   ?= 2

.PHONY: run test lint build native lock clean help

run: build  ## start everything; Ctrl-C ends it and leaves nothing behind
	@exec $(BIN)/fabrictime up $(ARGS)

# The Soft-RoCE guest is an emulated machine with timeouts of its own: beside fabrics, whose services go before it, it
# starves. So it has the processors to itself, after the rest.
test: build  ## run the whole test suite, or what ARGS names of it
ifeq ($(strip $(ARGS)),)
	@code=0; \
	  $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not rdma" || code=$$?; \
	  $(BIN)/python -m pytest -m rdma tests/rdma || code=$$?; \
	  exit $$code
else
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)
endif

lint: build  ## run ruff, mypy and import-linter alone
	@$(BIN)/python -m pytest tests/test_lint.py $(ARGS)

build: $(VENV)/.installed native

$(VENV)/.installed: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fabrictime: $(PYTHON) is $$($(PYTHON) -V), expected Python 3.11 or later" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "fabrictime: $(PYTHON) has no venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || \
	  { echo "fabrictime: Python.h is missing (Debian: apt-get install python3-dev)" >&2; exit 1; }
	@command -v $${CC:-gcc} >/dev/null || \
	  { echo "fabrictime: no C compiler (Debian: apt-get install gcc)" >&2; exit 1; }
	@echo "fabrictime: making $(VENV), 1.4 GB, and installing the dependencies into it: some minutes"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -W ignore -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

# The extension modules, beside their sources, and the `fabrictime` command.
native: $(VENV)/.installed
	@$(BIN)/python tools/build_native.py

lock:  ## resolve the dependencies anew into requirements.lock
	@$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
	  --no-emit-trusted-host --no-emit-find-links --extra test --extra build --extra registry --extra bench \
	  -o requirements.lock pyproject.toml

clean:  ## remove what the build made
	rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find native -name '*.so' -delete

help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
