# triton-batching: every job of the project, one target each. `make help` lists them; ARGS= adds arguments to a program.
PYTHON  ?= python3
VENV    := .venv
# cpu or gpu: what .venv was made for, unless said otherwise.
RUNTIME ?= $(or $(patsubst $(VENV)/.runtime-%,%,$(firstword $(wildcard $(VENV)/.runtime-*))),cpu)
READY   := $(VENV)/.runtime-$(RUNTIME)
PY      := $(VENV)/bin/python
# Python compiles what is imported at its first import, which is a small part of what is installed.
INSTALL := $(PY) -m pip install --disable-pip-version-check --quiet --progress-bar on --no-compile --constraint requirements.lock
# The last client wheel that holds the perf_analyzer binary, in a folder of its own beside the current client.
ANALYZER := $(shell sed -n 's/^. perf_analyzer: //p' requirements.lock)

# Some machines forbid Python to keep what it compiled: then each program takes seconds to start.
export PYTHONDONTWRITEBYTECODE :=

# The one model file that is made on the spot, without torch: for the demo, and if it is the model asked for.
RANKER  := model_repository/ranker/1/model.onnx
EXPORT   = $(if $(filter ranker,$(MODEL)),$(RANKER))

# What tests of alerts, images and pages need beside Python (`make system`).
SYSTEM  := prometheus prometheus-alertmanager buildah mmdebstrap podman runc chromium chromium-driver

# The rules of accessibility that tests of pages hold them to.
AXE     := 4.11.0

MODEL   ?= text_recognition
CONFIG  ?=
# The latency target of `make tune`, in ms, and the load that it is to hold under.
P99_MS  ?= 50
LOAD    ?= closed:16
IMAGE   ?= triton-batching
RELEASE ?= 24.10
# Tests mostly wait for servers, so two more of them run at a time than there are cores. With more, tests of canaries and
# targets see a machine that is too slow.
WORKERS ?= $(shell n=$$(( $$(nproc) + 2 )); echo $$(( n < 8 ? n : 8 )))
PYTEST   = $(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup demo export serve cluster check-repo vendor doctor client measure report tune pack watch test test-quick test-properties test-image check image system lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv with tritonserver, perf_analyzer and onnxruntime (RUNTIME=cpu or gpu)

demo: $(READY) $(RANKER) vendor  ## the whole journey: serve, batch, measure, report, read words (RESULTS=folder, ARGS=--quick)
	$(PY) -m perf.demo --results "$(or $(RESULTS),perf/results/demo)" $(ARGS)

export: $(VENV)/.dev vendor  ## export every model to ONNX and prove it (needs torch)
	$(PY) -m export $(ARGS)

serve: $(READY) $(EXPORT) vendor  ## serve a model on ports 8000/8001/8002 (MODEL=, CONFIG=)
	$(PY) -m serve --model $(MODEL) $(if $(CONFIG),--config-name $(CONFIG)) $(ARGS)

cluster: $(VENV)/.cluster vendor  ## three replicas behind a front door on ports 8000/8001 (PLAN=, ARGS=--fresh)
	$(PY) -m serve.cluster up "$(or $(PLAN),serve/cluster/plans/three_replicas.toml)" $(ARGS)

check-repo: $(READY)  ## check every config.pbtxt and variant against its ONNX graph
	$(PY) -m serve.vendor --check
	$(PY) -m export.repository

vendor: $(READY)  ## copy the shared modules that a model.py imports beside it
	@$(PY) -m serve.vendor > /dev/null

doctor: $(READY)  ## find batching mistakes in a model repository (REPOSITORY=)
	$(PY) -m serve.doctor $(or $(REPOSITORY),model_repository) $(ARGS)

client: $(READY)  ## read the sample pictures on the running server
	$(PY) -m clients.examples.recognize clients/pictures/*.png $(ARGS)

measure: $(READY) $(EXPORT) vendor  ## sweep one model over its configurations (MODEL=, RESULTS=)
	$(PY) -m perf.measure.sweep $(MODEL) --results "$(or $(RESULTS),perf/results/local)" $(ARGS)

report: $(READY)  ## one index page of all records, or tables, CSV and the page of one folder (RESULTS=, ARGS=--open)
	$(PY) -m perf.report $(if $(RESULTS),"$(RESULTS)") $(ARGS)

tune: $(READY) $(EXPORT) vendor  ## find the best configuration under a latency target (MODEL=, P99_MS=, LOAD=)
	$(PY) -m perf.tune $(MODEL) --p99-ms $(P99_MS) --load $(LOAD) $(if $(RESULTS),--results "$(RESULTS)") $(ARGS)

pack: $(VENV)/.dev  ## pack models onto devices under their latency targets (PLAN=)
	$(PY) -m perf.pack "$(or $(PLAN),perf/pack/plans/three_models.toml)" $(ARGS)

watch: $(READY)  ## the running server live, in the terminal and on http://127.0.0.1:8003/
	$(PY) -m perf.watch --serve $(ARGS)

test: $(VENV)/.dev vendor  ## every test, with real servers
	@$(MAKE) --no-print-directory system
	$(PY) -m export
	@# The longest file first, so that nothing waits for it at the end.
	$(PYTEST) --durations 10 --most-servers 90 --ignore tests/docker/test_image.py $(or $(ARGS),tests/test_readme.py tests)

test-quick: $(VENV)/.dev vendor  ## the tests that need no server and take less than a second: about a minute
	@# They wait little, and each worker takes a while to collect them.
	$(PYTEST) --numprocesses $$(($$(nproc) + 1)) -m "not server and not slow" --ignore tests/docker/test_image.py $(or $(ARGS),tests)

test-properties: $(VENV)/.dev vendor  ## the property tests with many more examples
	$(PYTEST) -m hypothesis --hypothesis-profile properties $(or $(ARGS),tests)

test-image: $(VENV)/.dev vendor  ## build the Debian image, start it and its pod (needs buildah, podman)
	$(PY) -m pytest tests/docker/test_image.py $(ARGS)

check: $(VENV)/.dev vendor  ## style, types, import direction and the doctor
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	for model in simulated_accelerator python_batched_service image_preprocess image_postprocess \
	    image_classification_bls text_reading; do \
	    MYPYPATH=model_repository/$$model/1 $(PY) -m mypy model_repository/$$model/1/model.py || exit 1; done
	$(PY) -m mypy clients/examples/models/spelling/1/model.py
	$(VENV)/bin/lint-imports
	$(PY) -m serve.doctor model_repository --fail-on info
	$(PY) -m serve.doctor clients/examples/models --fail-on info

image: vendor  ## build the container images (needs a Docker engine)
	docker build --build-arg RELEASE=$(RELEASE) --file docker/server.Dockerfile --tag $(IMAGE)-server:$(RELEASE) .
	docker build --build-arg RELEASE=$(RELEASE) --file docker/sdk.Dockerfile --tag $(IMAGE)-sdk:$(RELEASE) .

system:  ## install the Debian packages that some tests need, as root; without them these tests are skipped
	@if ! command -v apt-get > /dev/null || [ "$$(id -u)" != 0 ]; then \
	    echo "no apt-get as root here: tests that need $(SYSTEM) are skipped"; \
	elif dpkg --status $(SYSTEM) > /dev/null 2>&1; then echo "$(SYSTEM) are installed"; \
	else apt-get update --quiet=2 && \
	    DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends $(SYSTEM) > /dev/null; fi

lock: $(VENV)/.dev  ## renew requirements.lock from pyproject.toml
	@mkdir -p build
	sed -n '/^# Binaries/,$$p' requirements.lock > build/binaries.lock
	$(VENV)/bin/pip-compile --quiet --all-extras --strip-extras --no-emit-index-url --no-emit-find-links \
	    --no-emit-trusted-host --no-header --no-annotate --output-file requirements.lock pyproject.toml
	@# CUDA's libraries are pinned by the torch or onnxruntime-gpu that needs them, each to its own.
	sed -i -e 's/+cpu$$//' -e '/^nvidia-[cn][uv]/d' -e '/^cuda-/d' -e '/^#/d' -e '/^triton-batching/d' requirements.lock
	cat build/binaries.lock >> requirements.lock

clean:  ## remove what was built (records, .venv and exported models stay)
	rm -rf build clients/build clients/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 13) else \
	    f"Python {sys.version.split()[0]} found, 3.11 or 3.12 needed: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "Python cannot make a virtual environment (Debian and Ubuntu: apt-get install python3-venv)"; exit 1; }

$(READY): pyproject.toml requirements.lock | $(VENV)/bin/python
	@echo "installing tritonserver, perf_analyzer and onnxruntime into $(VENV) (about 200 MB to download)"
	@# The wheels for CPU and GPU own the same folder, so the other one goes first.
	@! ls -d $(VENV)/lib/python3*/site-packages/onnxruntime > /dev/null 2>&1 || \
	    $(PY) -m pip uninstall --disable-pip-version-check --quiet --yes onnxruntime onnxruntime-gpu
	$(INSTALL) --editable '.[$(RUNTIME)]'
	$(INSTALL) --no-deps nvidia-pytriton
	$(PY) -m pip install --disable-pip-version-check --quiet --progress-bar on --no-compile --upgrade --no-deps \
	    --target $(VENV)/perf_analyzer $(ANALYZER)
	@rm -f $(VENV)/perf_analyzer/bin/perf_client  # the same binary under its old name
	$(PY) -m serve.vendor
	@rm -f $(VENV)/.runtime-*
	@touch $@

$(RANKER): | $(READY)
	$(PY) -m export ranker

$(VENV)/.cluster: $(READY)
	@echo "installing the front door, Envoy, into $(VENV) (about 41 MB to download)"
	$(INSTALL) --editable '.[$(RUNTIME),cluster]'
	@touch $@

$(VENV)/.dev: $(READY) | $(VENV)/axe.min.js
	@echo "installing torch, Ray and the checkers into $(VENV)"
	$(INSTALL) --editable '.[$(RUNTIME),export,ray,dev]'
	@touch $@

$(VENV)/axe.min.js: | $(VENV)/bin/python
	@cd $(VENV) && { npm pack --silent axe-core@$(AXE) > /dev/null && tar --extract --gzip --strip-components 1 \
	    --file axe-core-$(AXE).tgz package/axe.min.js && rm axe-core-$(AXE).tgz; } || \
	    echo "npm gives no axe-core: the test of accessibility is skipped"
