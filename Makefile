# Every command a person or CI needs. `make` alone lists them.

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
SETUP := tools/setup_env.py
# Two test processes share two cores: one thread each.
ONE_THREAD := OMP_NUM_THREADS=1
PYTHONS := 3.12 3.13
# Tests of real processes run once more after a failure, and say so ("RERUN" in the summary).
# A rerun is a bug to be mended; it does not stop everybody else.
AGAIN := --reruns 1 --reruns-delay 2 -raR

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export DO_NOT_TRACK := 1
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup serve gen gen-check sizing docs lock fmt lint types arch rules smoke test test-unit \
	test-shared test-integration test-e2e test-chaos test-deploy images image-cuda package test-gpu test-pythons bench \
	check clean reset

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## create .venv with everything pinned; quick when nothing changed
	@python=$$(tools/find_python.sh) && "$$python" $(SETUP) --venv $(VENV)

serve: setup ## set up, then run the local stack; ARGS="--http-port 8080" passes arguments on
	@exec $(BIN)/headrace serve $(ARGS)

gen: setup ## write what is generated: protobuf modules, references, schemas, the example .env
	@$(BIN)/python tools/gen_proto.py
	@$(BIN)/python tools/gen.py

gen-check: setup ## fail when a generated file is not what `make gen` writes
	@$(BIN)/python tools/gen_proto.py --check
	@$(BIN)/python tools/gen.py --check
	@$(BIN)/python tools/sizing.py --check

sizing: setup ## write the figures of the sizing guide from bench/results and the simulator; a minute
	@$(BIN)/python tools/sizing.py

docs: setup ## build the guides as a site, build/site; broken links and lost pages fail
	@$(BIN)/python tools/docs_site.py $(ARGS)

lock: setup ## compile requirements/*.txt; ARGS=--upgrade takes newer versions
	@$(BIN)/python tools/lock.py $(ARGS)
	@$(MAKE) --no-print-directory setup
	@$(BIN)/python tools/notice.py

fmt: setup ## format, and mend what ruff can mend
	@$(BIN)/ruff format --quiet
	@$(BIN)/ruff check --fix --quiet

lint: setup ## form, ruff's rules, words, layout, versions, links of the guides
	@$(BIN)/ruff format --check --quiet || { echo "not formatted: run \`make fmt\`"; exit 1; }
	@$(BIN)/ruff check --quiet
	@$(BIN)/python tools/check_words.py
	@$(BIN)/python tools/check_layout.py
	@$(BIN)/python tools/check_versions.py
	@$(BIN)/python tools/docs_site.py

types: setup ## pyright, strict, tests included
	@$(BIN)/pyright --threads 2

arch: setup ## import contracts: floors, torch, asyncio
	@$(BIN)/lint-imports --no-cache

rules: setup ## the engine's contract: addresses, lengths, a test for each rule
	@$(BIN)/python tools/check_rules.py

smoke: setup ## install each member alone and import all of it with the network off
	@$(BIN)/python tools/smoke.py

test-unit: setup ## unit tests, under two minutes
	$(ONE_THREAD) $(PYTEST) tests/unit -q -n 2

test-shared: setup ## one suite for the real thing and its fake; the wire of earlier versions
	@command -v redis-server >/dev/null || \
		echo "SKIPPED: no redis-server on PATH; the embedded server is tested alone"
	$(ONE_THREAD) $(PYTEST) tests/shared tests/wire -q

test-integration: setup ## against a real server
	$(ONE_THREAD) $(PYTEST) tests/integration -q -n 2 $(AGAIN)

test-e2e: setup ## the served stack, with the clients people use
	$(PYTEST) tests/e2e -q $(AGAIN)

test-chaos: setup ## kills, stalls and restarts
	$(PYTEST) tests/chaos -q $(AGAIN)

test-deploy: setup ## images, compose, chart and cluster for real; on Debian, as root; sets all of it up
	@$(BIN)/python tools/containers/prepare.py
	$(PYTEST) tests/deploy -q --timeout=1800 $(AGAIN)

images: setup ## build the three images, on Debian, as root; only what they are made of is fetched
	@$(BIN)/python tools/containers/install.py
	@$(BIN)/python tools/containers/daemon.py up
	@$(BIN)/python tools/containers/images.py

image-cuda: setup ## build the CUDA engine's image with its kernels; fetches 3 GB, takes 25 GB of disk, no GPU
	@$(BIN)/python tools/containers/install.py
	@$(BIN)/python tools/containers/daemon.py up
	@$(BIN)/python tools/containers/images.py cuda

package: setup ## pack chart and images with their digests into dist/; needs docker and helm; ARGS=IMAGE...
	@$(BIN)/python tools/package.py $(ARGS)

test-gpu: setup ## the CUDA executor and its kernels; needs one NVIDIA GPU
	$(PYTEST) tests/gpu tests/unit/headrace_engine/kernels/gpu tests/unit/headrace_engine/executor/test_cuda*.py -q

test-pythons: setup ## everything without torch on the other supported Pythons
	@for version in $(PYTHONS); do \
		if python=$$(tools/find_python.sh $$version); then \
			"$$python" $(SETUP) --venv .venv-$$version --no-torch && \
			$(ONE_THREAD) .venv-$$version/bin/python -m pytest tests/unit tests/shared tests/wire \
				-q -n 2 -m "not torch" -p no:cacheprovider && \
			$(ONE_THREAD) .venv-$$version/bin/python -m pytest tests/integration tests/chaos \
				-q -n 2 -m "not torch" -p no:cacheprovider $(AGAIN) || exit 1; \
		else \
			echo "SKIPPED: there is no Python $$version on this machine"; \
		fi; \
	done

test: setup ## set up, then everything that needs no GPU and no container engine
	@for part in lint types arch rules gen-check smoke test-unit test-shared \
			test-integration test-e2e test-chaos test-pythons; do \
		echo "== make $$part"; began=$$(date +%s); \
		$(MAKE) --no-print-directory $$part || exit 1; \
		echo "== make $$part: passed in $$(( $$(date +%s) - began )) s"; \
	done

check: lint types arch rules gen-check test-unit ## what a person runs before pushing

bench: setup ## run bench/NAME.py: make bench name=NAME ARGS=…
	@if [ -z "$(name)" ]; then grep -l '^if __name__' bench/*.py | sed 's|bench/\(.*\)\.py|  make bench name=\1|'; \
	else $(BIN)/python bench/$(name).py $(ARGS); fi

clean: ## remove caches and build products, keep .venv
	rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache .cache dist build
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

reset: clean ## remove .venv and the local stack's state: API keys, data, logs
	@[ ! -x $(BIN)/headrace ] || $(BIN)/headrace reset --yes
	rm -rf .venv .venv-*
