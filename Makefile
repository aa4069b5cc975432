# make run: the whole pipeline on a fabric of real packets.  make test: the whole suite.  make help: the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=
# Tests wait for most of their time, so four at once use two processors. Slow tests measure, so two run at once.
JOBS   ?= 4
SLOW_JOBS ?= 2
MPICC  ?= mpicc
# Tests start hundreds of interpreters: without byte code, each compiles its modules for seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all lint build native mpi dist docs lock clean help

run: build  ## start the whole pipeline; Ctrl-C stops it
	@exec $(BIN)/fabrictime up $(ARGS)

# The whole pipeline takes both processors of a small machine: beside other tests its history starves. The Soft-RoCE guest
# is an emulated machine with time-outs of its own. So both run alone, after the rest.
test: $(VENV)/.complete native  ## run the suite without the tests marked slow, or the part that ARGS names
ifeq ($(strip $(ARGS)),)
	@code=0; \
	  $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow and not pipeline and not rdma" || code=$$?; \
	  $(BIN)/python -m pytest -m "pipeline and not slow" tests/fabrictime/commands || code=$$?; \
	  exit $$code
else
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)
endif

test-all: $(VENV)/.complete native  ## run the whole suite, with all examples of property tests
	@code=0; export FABRICTIME_TESTS=all; \
	  $(BIN)/python -m pytest -n $(SLOW_JOBS) --dist loadfile -m "not pipeline and not rdma" || code=$$?; \
	  $(BIN)/python -m pytest -m pipeline tests/fabrictime/commands || code=$$?; \
	  $(BIN)/python -m pytest -m rdma tests/rdma || code=$$?; \
	  exit $$code

lint: $(VENV)/.complete native  ## run ruff, clang-format, mypy, import-linter and the house figures alone
	@$(BIN)/python -m pytest tests/test_lint.py tests/tools/test_house.py $(ARGS)
	@$(BIN)/python tools/house.py --json

build: $(VENV)/.installed native  ## install what a run needs, and compile native/

$(VENV)/.installed: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fabrictime: $(PYTHON) is $$($(PYTHON) -V), expected Python 3.11 or later" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "fabrictime: $(PYTHON) has no venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || \
	  { echo "fabrictime: Python.h is missing (Debian: apt-get install python3-dev)" >&2; exit 1; }
	@command -v $${CC:-gcc} >/dev/null || \
	  { echo "fabrictime: no C compiler (Debian: apt-get install gcc)" >&2; exit 1; }
	@echo "fabrictime: making $(VENV), 1.2 GB, and compiling native/: some minutes"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python tools/install.py run
	@touch $@

# What tests, benches and `make lock` need besides.
$(VENV)/.complete: $(VENV)/.installed
	@echo "fabrictime: installing the packages of tests and benches, 1.0 GB"
	@$(BIN)/python tools/install.py all
	@touch $@

# The extension modules, beside their sources, and the `fabrictime` command. Byte code: else the processes of `up` and
# the workers of the suite all compile the same modules at the same time.
native: $(VENV)/.installed
	@$(BIN)/python tools/build_native.py
	@$(BIN)/python -m compileall -q -j 0 -x '/test_|/conftest' schemas native producers streams actuators grafana fabrictime \
	  clients tools tests

mpi:  ## build the profiler of MPI programs for another MPI, with MPICC
	$(MPICC) -shared -fPIC -O2 -fvisibility=hidden -Inative/collectives -Iclients/c -o native/mpi/libfabrictime-mpi.so \
	  $(filter-out native/mpi/testbed.c,$(wildcard native/mpi/*.c)) $(addprefix native/collectives/,writer.c connect.c job_name.c sockets.c) \
	  -lpthread -ldl -Wl,-z,nodelete -Wl,--as-needed

dist: $(VENV)/.complete native  ## build wheels and the packages of agent and services into dist/, or the parts that ARGS names
	@$(BIN)/python -m tools.release $(ARGS)

docs: $(VENV)/.complete native  ## take a picture of each tab, and build the site into build/site
	@$(BIN)/python -m tools.page_pictures build/pictures
	@$(BIN)/python -m mkdocs build --strict

lock: $(VENV)/.complete  ## resolve the dependencies into requirements.lock
	@$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
	  --no-emit-trusted-host --no-emit-find-links --extra server --extra test --extra build --extra registry --extra bench --extra kubernetes --extra otlp --extra mcp --extra dist \
	  -o requirements.lock pyproject.toml

clean:  ## remove the results of the build
	rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf grafana/dashboards
	find native -name '*.so' -delete
	rm -f native/nccl/nccl-replay native/nccl/nccl-split

help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'
