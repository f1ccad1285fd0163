# codeexec: `make demo` shows it, `make test` proves it. Everything else is a part of these two.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
STATE := .codeexec
SCANNER := $(STATE)/scan
CLUSTER := tests/cluster
NAMESPACE := codeexec-system
SANDBOX := codeexec-sandbox

# A kubeconfig of the user's is honoured: then nothing is created, only deployed. Otherwise the kind cluster's own.
OWN_KUBECONFIG := $(CURDIR)/$(STATE)/kubeconfig
USER_KUBECONFIG := $(filter-out $(OWN_KUBECONFIG),$(KUBECONFIG))
export KUBECONFIG := $(or $(USER_KUBECONFIG),$(OWN_KUBECONFIG))
export PATH := $(PATH):$(shell $(CLUSTER)/tools.sh --bin)

.PHONY: help venv cluster images sbom deploy demo test check e2e conformance parity bench bench-records audit-picture load scan generate format clean kubeconfig

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

venv: $(BIN)/.installed ## Make the virtual environment .venv from the locked requirements

$(BIN)/.installed: requirements/dev.txt pyproject.toml
	@echo "making .venv"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "codeexec needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv || { echo "python3 -m venv failed: on Debian, apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

cluster: ## Bring up the kind cluster "codeexec", or reuse it (not if KUBECONFIG names a cluster of yours)
	@if [[ -n "$(USER_KUBECONFIG)" ]]; then
	  echo "using the cluster of KUBECONFIG=$(USER_KUBECONFIG); nothing is created"
	else
	  $(CLUSTER)/up.sh --kubeconfig "$(OWN_KUBECONFIG)"
	fi

images: venv ## Build the operator and sandbox images and push them to where the cluster pulls from
	@if [[ -z "$(USER_KUBECONFIG)" ]]; then
	  $(CLUSTER)/images.sh
	elif [[ -n "$${PUSH_TO:-}" ]]; then
	  $(CLUSTER)/images.sh --push-to "$$PUSH_TO"
	elif [[ -z "$${OPERATOR_IMAGE:-}" || -z "$${SANDBOX_IMAGE:-}" ]]; then
	  echo "your cluster needs images that it can pull: set PUSH_TO=REGISTRY/PREFIX to build and push them there," >&2
	  echo "or OPERATOR_IMAGE and SANDBOX_IMAGE to references by digest (NAME@sha256:...)" >&2
	  exit 1
	else
	  mkdir -p $(STATE)
	  printf 'OPERATOR_IMAGE=%s\nSANDBOX_IMAGE=%s\n' "$$OPERATOR_IMAGE" "$$SANDBOX_IMAGE" >$(STATE)/images.env
	fi

sbom: images ## Write a bill of materials of each image to .codeexec/sbom (CycloneDX; not for images from elsewhere)
	@$(CLUSTER)/sbom.sh

deploy: cluster images ## Install or upgrade the Helm chart
	@$(CLUSTER)/tools.sh helm kubectl
	source $(STATE)/images.env
	# Where the cluster has gVisor, executions may ask for it.
	gvisor="$$(kubectl get runtimeclass gvisor --ignore-not-found --output name)"
	echo "installing the chart: release codeexec, namespace $(NAMESPACE)"
	helm upgrade --install codeexec charts/codeexec --namespace $(NAMESPACE) --create-namespace --wait --timeout 3m \
	  --set image.repository="$${OPERATOR_IMAGE%@*}" --set image.digest="$${OPERATOR_IMAGE#*@}" \
	  --set sandbox.image.repository="$${SANDBOX_IMAGE%@*}" --set sandbox.image.digest="$${SANDBOX_IMAGE#*@}" \
	  $${gvisor:+--set policy.runtimeClassNames={gvisor}} $${HELM_ARGS:-} >$(STATE)/helm.log || { cat $(STATE)/helm.log >&2; exit 1; }
	echo "deployed"

demo: deploy ## Bring everything up and let an AutoGen agent run code in hardened pods
	@echo
	echo "--- an AutoGen agent runs Python and shell ---"
	$(BIN)/python examples/01-hello/main.py
	echo
	echo "--- the records: kubectl get codeexecutions ---"
	kubectl get codeexecutions --all-namespaces --sort-by=.metadata.creationTimestamp

test: check scan e2e ## Run all tests, on the real cluster

check: venv ## Lint, types, import contracts, unit, contract and chart tests: all that needs no cluster
	@$(CLUSTER)/tools.sh helm helm-unittest kubeconform k8s-schemas
	echo "ruff"; $(BIN)/ruff check .; $(BIN)/ruff format --check --quiet .
	echo "shellcheck"; $(BIN)/shellcheck -x .ci/run $(CLUSTER)/*.sh
	echo "mypy"; $(BIN)/mypy
	echo "import contracts"; $(BIN)/lint-imports --no-logo
	$(BIN)/pytest tests/unit tests/contract tests/chart

e2e: deploy sbom ## Prove that NetworkPolicy is enforced, then run the end-to-end tests
	@echo "checking that the cluster enforces NetworkPolicy"
	$(CLUSTER)/check.sh --kubeconfig "$$KUBECONFIG"
	$(CLUSTER)/tools.sh chromium
	$(BIN)/pytest tests/e2e tests/conformance tests/parity

conformance: deploy ## Try every guarantee by attack code on the cluster, and write docs/security/conformance.md
	@$(BIN)/pytest tests/conformance --conformance-page docs/security/conformance.md

parity: deploy ## Hold the executor beside AutoGen's Local and Docker executors, and write docs/parity.md
	@$(BIN)/pytest tests/parity --parity-page docs/parity.md

bench: deploy ## Measure a call beside its peers, in one run (table, and JSON in .codeexec/bench.json; PAGE=1: docs/performance.md)
	@$(BIN)/python tests/bench/bench.py
	$(if $(PAGE),$(BIN)/python tests/bench/page.py docs/performance.md)

bench-records: deploy ## Measure a call and the operator without and with 10,000 records (JSON in .codeexec/records.json)
	@$(BIN)/python -W ignore tests/bench/retained.py

audit-picture: venv ## Write docs/audit-report.png, a page of `codeexec audit report`, by Chromium
	@$(CLUSTER)/tools.sh chromium
	$(BIN)/python tests/audit_scene.py docs/audit-report.png

load: deploy ## Load the control plane: 75 executions/s for 10 s on 100 simulated nodes (a kind cluster that is yours alone)
	@$(BIN)/python tests/scale/load.py

scan: deploy $(SCANNER)/.installed ## Hold the chart and live pods against an independent manifest scanner (checkov)
	@$(BIN)/pytest tests/scan

$(SCANNER)/.installed: requirements/scan.txt | $(BIN)/.installed
	@echo "making $(SCANNER), the scanner's own environment"
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(SCANNER)
	$(BIN)/uv pip install --quiet --require-hashes --python $(SCANNER)/bin/python -r requirements/scan.txt
	touch $@

generate: venv ## Write CRDs, chart copies, docs/phases.md and lock files
	@$(BIN)/python -m codeexec_api .
	compile=($(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11)
	"$${compile[@]}" --universal pyproject.toml --extra dev --output-file requirements/dev.txt
	"$${compile[@]}" --universal pyproject.toml --extra operator --extra cli --output-file requirements/operator.txt
	"$${compile[@]}" --universal requirements/scan.in --output-file requirements/scan.txt
	# Code runs on the image's Python and nowhere else, and the image is made of wheels.
	"$${compile[@]}" --python-platform linux --only-binary :all: operator/sandbox/requirements.in --output-file requirements/sandbox.txt

format: venv ## Format the code
	@$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

clean: ## Delete the kind cluster (not one of yours), the virtual environment and the state folder; caches stay
	@if [[ -z "$(USER_KUBECONFIG)" ]]; then $(CLUSTER)/down.sh; fi
	rm -rf .venv $(STATE) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

kubeconfig: ## Print the path of the kubeconfig in use
	@echo "$$KUBECONFIG"
