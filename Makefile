# codeexec: `make demo` shows it, `make test` proves it. Everything else is a part of these two.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STATE := .codeexec
SCANNER := $(STATE)/scan
CLUSTER := tests/cluster
NAMESPACE := codeexec-system

# A kubeconfig of the user's is honoured: then nothing is created, only deployed. Otherwise the kind cluster's own.
OWN_KUBECONFIG := $(CURDIR)/$(STATE)/kubeconfig
USER_KUBECONFIG := $(filter-out $(OWN_KUBECONFIG),$(KUBECONFIG))
export KUBECONFIG := $(or $(USER_KUBECONFIG),$(OWN_KUBECONFIG))
export PATH := $(PATH):$(shell $(CLUSTER)/tools.sh --bin)

# What a recipe starts ends with it: an interrupted run leaves no build and no test behind.
RUN := setpriv --pdeathsig TERM --
# uv takes packages from where pip's settings say.
PIPS_INDEX = index="$$($(BIN)/pip config list | sed -n "s/^[^=]*\.index-url='\(.*\)'$$/\1/p" | tail -n 1)"; \
  if [[ -n "$$index" ]]; then export UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$$index}"; fi
# For a make of its own that does several things at a time, within the limit of who called us with -j.
BESIDE = $(if $(findstring --jobserver,$(MAKEFLAGS)),,-j4)
# One target after the other, also if one fails.
EACH = status=0; for part in $(1); do $(RUN) $(MAKE) $(2) $$part || status=1; done; exit $$status
# pytest on a tier; its times and results stay in .codeexec/reports.
TIER = $(RUN) $(BIN)/pytest tests/$(1) --junit-xml $(STATE)/reports/$(subst /,-,$(1))$(2).xml
# The same, and which lines the tier runs stays in .codeexec/coverage.
MEASURED = rm -rf $(STATE)/coverage/$(1); mkdir -p $(STATE)/coverage/$(1); COVERAGE_FILE=$(CURDIR)/$(STATE)/coverage/$(1)/data \
  $(RUN) $(BIN)/coverage run -m pytest tests/$(1) --junit-xml $(STATE)/reports/$(1).xml
# How many files of tests run side by side (pytest-xdist). With three end-to-end files pods waited for room on the node.
# Component tests wait more than they compute: with three of them 30 % of the CPU was idle.
UNIT_WORKERS ?= 2
API_WORKERS ?= 2
COMPONENT_WORKERS ?= 4
E2E_WORKERS ?= 2
NOT_E2E := --ignore tests/e2e/scan --ignore tests/e2e/sbom --ignore tests/e2e/cosign
# Tests want more of the release than a demo does: a sandbox namespace for each worker, for one.
test e2e e2e-side-by-side e2e-alone scan conformance parity sbom cosign soak flakes: export HELM_ARGS += --values tests/e2e/values.yaml
# Figures of runc and of gVisor, where the cluster has it.
bench bench-records bench-boundaries: export HELM_ARGS += --set policy.runtimeClassName=runc,policy.runtimeClassNames={gvisor}
# The control planes of tests have memory to spare: with this, a component test takes 13 % less CPU.
api component: export GOGC := 400
# The other Pythons that the unit and API tier pass on; .venv has the oldest.
PYTHONS ?= 3.12 3.13
# Whoever has just deployed says so, and need not do it again.
DEPLOY := $(if $(DEPLOYED),,deploy)

.PHONY: help venv dist cluster control-plane images image-builds ready sign sbom cosign deploy demo test with-cluster without-cluster check lint prose unit api component e2e e2e-side-by-side e2e-alone chromium conformance parity packages versions covered bench bench-records bench-boundaries bench-fairness bench-wide bench-burst bench-cost audit-picture cast load flakes chaos soak mutants syscalls scan generate format clean kubeconfig

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

venv: $(BIN)/.installed ## Make the virtual environment .venv from the locked requirements

$(BIN)/.installed: requirements/dev.txt pyproject.toml operator/pyproject.toml hatch_build.py
	@echo "making $(VENV)"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "codeexec needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed: on Debian, apt-get install python3-venv" >&2; exit 1; }
	# pip brings uv, as it is locked; uv brings the rest in a tenth of pip's time.
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r <(sed -n '/^uv==/,/[^\]$$/p' requirements/dev.txt)
	$(PIPS_INDEX)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable . --editable ./operator
	touch $@

dist: venv ## Build what pip installs into dist: codeexec and codeexec-operator (CODEEXEC_REPOSITORY=https://HOST/OWNER/NAME: with links)
	@rm -rf dist
	$(BIN)/hatchling build --directory $(CURDIR)/dist
	cd operator; ../$(BIN)/hatchling build --target wheel --directory $(CURDIR)/dist

cluster: ## Bring up the kind cluster "codeexec", or reuse it (not if KUBECONFIG names a cluster of yours)
	@if [[ -n "$(USER_KUBECONFIG)" ]]; then
	  echo "using the cluster of KUBECONFIG=$(USER_KUBECONFIG); nothing is created"
	else
	  $(RUN) $(CLUSTER)/up.sh --kubeconfig "$(OWN_KUBECONFIG)"
	fi

control-plane: ## Make sure of hyperkube, from which tests start control planes of their own
	@$(RUN) $(CLUSTER)/tools.sh hyperkube

# What takes long about the images, which needs no cluster. Images for another registry are built when they are pushed.
image-builds: venv
	@if [[ -z "$(USER_KUBECONFIG)" ]]; then $(RUN) $(CLUSTER)/images.sh --build-only; fi

images: image-builds cluster ## Build the operator and sandbox images, push them to where the cluster pulls from, and sign them
	@if [[ -z "$(USER_KUBECONFIG)" ]]; then
	  $(RUN) $(CLUSTER)/images.sh
	elif [[ -n "$${PUSH_TO:-}" ]]; then
	  $(RUN) $(CLUSTER)/images.sh --push-to "$$PUSH_TO"
	elif [[ -z "$${OPERATOR_IMAGE:-}" || -z "$${SANDBOX_IMAGE:-}" ]]; then
	  echo "your cluster needs images that it can pull: set PUSH_TO=REGISTRY/PREFIX to build and push them there," >&2
	  echo "or OPERATOR_IMAGE and SANDBOX_IMAGE to references by digest (NAME@sha256:...)" >&2
	  exit 1
	else
	  mkdir -p $(STATE)
	  printf 'OPERATOR_IMAGE=%s\nSANDBOX_IMAGE=%s\n' "$$OPERATOR_IMAGE" "$$SANDBOX_IMAGE" >$(STATE)/images.env
	fi

sign: venv ## Sign IMAGE, a reference by digest of an image in its registry, and print the file with the signature (docs/images.md)
	@PYTHONPATH=tests/support $(BIN)/python -m image_release sign "$(IMAGE)"

sbom: $(DEPLOY) ## Write a bill of materials of each image to .codeexec/sbom (CycloneDX), and test it (builds syft first: 200 s)
	@$(RUN) $(CLUSTER)/sbom.sh
	$(call TIER,e2e/sbom)

cosign: $(DEPLOY) ## Show that cosign verifies what `make images` signs, and the operator what cosign signs (builds cosign first: 240 s)
	@$(RUN) $(CLUSTER)/tools.sh cosign
	$(call TIER,e2e/cosign)

# The cluster and the images, side by side.
ready:
	@$(RUN) $(MAKE) $(BESIDE) images

deploy: ready ## Install or upgrade the Helm chart
	@$(RUN) $(CLUSTER)/tools.sh helm kubectl
	source $(STATE)/images.env
	verification=()
	if [[ -n "$${IMAGE_KEYS:-}" && "$${VERIFY_IMAGES:-yes}" == yes ]]; then
	  verification=(--set-file sandbox.imageVerification.publicKeys="$$IMAGE_KEYS" --set-file sandbox.image.signature="$$SANDBOX_SIGNATURE")
	fi
	echo "installing the chart: release codeexec, namespace $(NAMESPACE)"
	helm upgrade --install codeexec charts/codeexec --namespace $(NAMESPACE) --create-namespace --wait --timeout 3m \
	  --set image.repository="$${OPERATOR_IMAGE%@*}" --set image.digest="$${OPERATOR_IMAGE#*@}" \
	  --set sandbox.image.repository="$${SANDBOX_IMAGE%@*}" --set sandbox.image.digest="$${SANDBOX_IMAGE#*@}" "$${verification[@]}" \
	  $${HELM_ARGS:-} >$(STATE)/helm.log || { cat $(STATE)/helm.log >&2; exit 1; }
	sed -n '/^WARNING/,/^$$/p' $(STATE)/helm.log
	echo "deployed"

# A demo has metrics to look at; a Prometheus in the namespace `monitoring` may read them.
demo: export HELM_ARGS += --set metrics.enabled=true,metrics.scrapeNamespaces={monitoring}
demo: deploy ## Bring everything up and let an AutoGen agent run code in hardened pods
	@echo
	echo "--- an AutoGen agent runs Python and shell ---"
	$(BIN)/python examples/01-hello/main.py
	echo
	echo "--- the records: kubectl get codeexecutions ---"
	kubectl get codeexecutions --all-namespaces --sort-by=.metadata.creationTimestamp
	echo
	echo "--- the metrics, at http://localhost:8082/metrics while this runs ---"
	echo "kubectl port-forward -n $(NAMESPACE) service/codeexec-operator-metrics 8082"

# The last lines of a log name what was skipped and what failed, whichever tier it was in.
CHECKED := unit api packages
TESTED := $(CHECKED) component e2e-scan e2e e2e-release
FORGET = rm -f $(patsubst %,$(STATE)/reports/%.xml,$(1))
FAILED = $(BIN)/python tests/support/failed.py $(1)

test: venv ## Run all tests but make sbom's: what needs no cluster beside what does
	@status=0; $(call FORGET,$(TESTED))
	$(RUN) $(MAKE) $(BESIDE) beside-with-cluster beside-without-cluster || status=1
	$(RUN) $(MAKE) covered COVERED="unit api component --adapters 85" || status=1
	$(call FAILED,$(TESTED)) || status=1
	exit $$status

with-cluster:
	@$(RUN) $(MAKE) later-deploy $(SCANNER)/.installed chromium
	$(call EACH,scan e2e,DEPLOYED=yes)

without-cluster:
	@$(call EACH,later-check later-component)

# Each line says whose it is.
beside-%:
	@$(RUN) $(MAKE) $* 2>&1 | sed -u 's/^/[$*] /'

# When somebody else wants the CPU: a build has dozens of threads and a component test many processes, and both wait well.
# The tests on the cluster wait for each other, so they go first; the other tiers take what those leave.
later-%:
	@$(RUN) nice -n 10 $(MAKE) $*

check: venv ## Lint, types, import contracts, prose, unit and API tier, packages: all that needs no cluster
	@status=0; $(call FORGET,$(CHECKED))
	$(RUN) $(MAKE) $(BESIDE) lint packages || status=1
	for part in prose unit api covered; do $(RUN) $(MAKE) $$part || status=1; done
	$(call FAILED,$(CHECKED)) || status=1
	exit $$status

# Which lines the tiers that ran have run.
COVERED ?= unit api
covered:
	@$(BIN)/python tests/support/coverage_by_tier.py $(COVERED)

lint: venv ## Lint, types and import contracts
	@echo "ruff"; $(BIN)/ruff check .; $(BIN)/ruff format --check --quiet .
	echo "shellcheck"; $(BIN)/shellcheck -x .ci/run $(CLUSTER)/*.sh
	echo "mypy"; $(BIN)/mypy
	echo "import contracts"; $(BIN)/lint-imports --no-logo

# Our own documents, the CRDs' descriptions, the help of the command line, the comments of the chart's values.
PROSE := README.md CHANGELOG.md SECURITY.md CONTRIBUTING.md docs/*.md docs/security/threat-model.md docs/security/known-escapes.md docs/security/permissions.md charts/codeexec/README.md tests/README.md tests/cluster/README.md

prose: venv ## Lint the English of the documents, the CRDs and the command line (vale, with the rules in tests/prose)
	@$(RUN) $(CLUSTER)/tools.sh vale
	echo "prose"
	$(BIN)/python tests/prose/texts.py $(STATE)/prose
	vale --config tests/prose/vale.ini --output line $(filter-out docs/parity.md,$(wildcard $(PROSE))) $(STATE)/prose/*.md

unit: venv ## The unit tier: pure, and the chart
	@$(RUN) $(CLUSTER)/tools.sh helm helm-unittest kubeconform k8s-schemas
	$(call MEASURED,unit) -n $(UNIT_WORKERS) --dist loadfile

api: venv control-plane ## The API tier: on an API server of its own, without a node (KUBERNETES=v1.32.0: of another version)
	@$(if $(KUBERNETES),export CODEEXEC_HYPERKUBE="$$($(RUN) $(CLUSTER)/control-plane.sh $(KUBERNETES) | tail -n 1)")
	$(RUN) $(CLUSTER)/tools.sh helm kubectl
	$(call MEASURED,api) -n $(API_WORKERS) --dist loadfile

packages: dist ## Install both distributions and each extra in clean environments, with the oldest and the newest versions they allow
	@$(PIPS_INDEX)
	$(call TIER,packages)

versions: venv control-plane ## The unit and API tier and the packages on the other Pythons (PYTHONS), which uv finds or brings
	@status=0
	for version in $(PYTHONS); do
	  # pyenv's commands in PATH start nothing unless they are told which version.
	  python="$$(PYENV_VERSION="$$version" $(BIN)/uv python find --system "$$version" 2>/dev/null)" ||
	    { $(BIN)/uv python install --quiet "$$version"; python="$$($(BIN)/uv python find --managed-python "$$version")"; }
	  folder=$(STATE)/python-$$version
	  for tier in unit api packages; do
	    echo "$$tier on $$("$$python" --version)"
	    $(RUN) $(MAKE) PYTHON="$$python" VENV="$$folder/venv" STATE="$$folder" "$$tier" || status=1
	  done
	done
	exit $$status

component: venv control-plane ## The component tier: the operator on a control plane of its own, with simulated nodes and faults on demand
	@$(RUN) $(CLUSTER)/tools.sh faketime helm kubectl
	$(call MEASURED,component) -n $(COMPONENT_WORKERS) --dist loadfile --no-loadscope-reorder

e2e: $(DEPLOY) ## The end-to-end tier: proves that NetworkPolicy is enforced, then runs code in pods
	@$(call EACH,e2e-side-by-side e2e-alone,DEPLOYED=yes)

e2e-side-by-side: $(DEPLOY) chromium
	@echo "checking that the cluster enforces NetworkPolicy"
	$(RUN) $(CLUSTER)/check.sh --kubeconfig "$$KUBECONFIG"
	$(call TIER,e2e) $(NOT_E2E) -m "not release" -n $(E2E_WORKERS) --dist loadfile --max-worker-restart 0

# Those that are marked `release` change what the others use.
e2e-alone: $(DEPLOY)
	@$(call TIER,e2e,-release) $(NOT_E2E) -m release

# For the tests of the audit report.
chromium:
	@$(RUN) $(CLUSTER)/tools.sh chromium

conformance: $(DEPLOY) ## Try every guarantee by attack code on the cluster, and write docs/security/conformance.md
	@$(BIN)/pytest tests/e2e/conformance --conformance-page docs/security/conformance.md

parity: $(DEPLOY) ## Hold the executor beside AutoGen's Local and Docker executors, and write docs/parity.md
	@$(BIN)/pytest tests/e2e/parity --parity-page docs/parity.md

bench: deploy ## Measure a call beside its peers, in one run (table, and JSON in .codeexec/bench.json; PAGE=1: docs/performance.md and docs/bench)
	@$(BIN)/python tests/bench/bench.py
	$(if $(PAGE),$(BIN)/python tests/bench/page.py docs/performance.md)

bench-boundaries: deploy ## Measure the same calls under runc and gVisor, in turn (table; PAGE=1: docs/performance.md)
	@$(BIN)/python tests/bench/boundaries.py

bench-records: deploy ## Measure a call and the operator without and with 10,000 records (and on simulated nodes with 100,000), or LARGEST=1: 300 of the largest (JSON in .codeexec/records.json)
	@$(BIN)/python -W ignore tests/bench/retained.py
	@RECORDS=100000 $(BIN)/pytest -s tests/component/test_many_records.py

bench-fairness: venv control-plane ## Measure a call alone, and beside a namespace that floods the operator, on simulated nodes (FLOOD, CALLS, RATE)
	@$(CLUSTER)/tools.sh helm kubectl
	PYTHONPATH=tests/support:tests/scale $(BIN)/python tests/scale/fairness.py

bench-wide: venv control-plane ## Measure one operator with many namespaces, nodes and ready pods, all simulated (NAMESPACES, NODES, READY)
	@$(CLUSTER)/tools.sh helm kubectl
	PYTHONPATH=tests/support:tests/scale $(BIN)/python tests/scale/wide.py

bench-burst: venv control-plane ## Create 100 sandboxes at once on simulated nodes (SANDBOXES, READY, ROUNDS; JSON in .codeexec/burst.json)
	@$(CLUSTER)/tools.sh helm kubectl
	PYTHONPATH=tests/support:tests/scale $(BIN)/python tests/scale/burst.py

bench-cost: venv control-plane ## Measure the CPU and the requests that one execution costs, on simulated nodes (EXECUTIONS, ROUNDS; PROFILE=file)
	@$(CLUSTER)/tools.sh helm kubectl
	PYTHONPATH=tests/support:tests/scale $(BIN)/python tests/scale/cost.py

cast: deploy ## Run the quick start on the cluster and write docs/cast.svg, the terminal at the top of README
	@$(BIN)/python tests/support/cast.py

audit-picture: venv ## Write docs/audit-report.png, a page of `codeexec audit report`, by Chromium
	@$(CLUSTER)/tools.sh chromium
	$(BIN)/python tests/support/audit_scene.py docs/audit-report.png

load: deploy ## Load the control plane: 75 executions/s for 10 s on 100 simulated nodes (a kind cluster that is yours alone)
	@$(BIN)/python tests/scale/load.py

flakes: $(DEPLOY) chromium ## Run each test that was flaky once 20 times beside two processes that take all the CPU they get (RUNS, HOGS)
	@$(RUN) $(BIN)/python tests/support/flakes.py

chaos: venv control-plane ## Not in CI: 1,000 executions and 20 sessions while operators, API server, etcd and pods go and come back (CHAOS_EXECUTIONS)
	@$(RUN) $(CLUSTER)/tools.sh helm kubectl
	PYTHONPATH=tests/support:tests/scale $(RUN) $(BIN)/python tests/chaos/chaos.py

soak: $(DEPLOY) ## Hours, not in CI: 500 executions, 20 at a time, then mixed load and the slope of what the operator holds (SOAK_MINUTES)
	@$(RUN) $(BIN)/python tests/soak/soak.py

mutants: venv ## Hours, not in CI: change the pure modules one bit at a time; the unit tests have to notice 95 % and each survivor has a reason
	@$(RUN) nice -n 10 $(BIN)/python tests/support/mutants.py

syscalls: venv ## Run workloads under strace and write which system calls they use to operator/sandbox/system_calls.py
	@$(BIN)/uv venv --quiet --clear --python /usr/bin/python3 $(STATE)/syscalls
	$(BIN)/uv pip install --quiet --require-hashes --python $(STATE)/syscalls/bin/python -r requirements/sandbox.txt
	PYTHONPATH=tests/support $(RUN) $(BIN)/python -m syscalls.observe $(STATE)/syscalls/bin/python

scan: $(DEPLOY) $(SCANNER)/.installed ## Hold the chart and live pods against an independent manifest scanner (checkov)
	@$(call TIER,e2e/scan)

$(SCANNER)/.installed: requirements/scan.txt | $(BIN)/.installed
	@echo "making $(SCANNER), the scanner's own environment"
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(SCANNER)
	$(BIN)/uv pip install --quiet --require-hashes --python $(SCANNER)/bin/python -r requirements/scan.txt
	touch $@

generate: venv ## Write the chart's CRDs, docs/phases.md, docs/security/known-escapes.md and lock files
	@$(BIN)/python -m codeexec_api .
	PYTHONPATH=tests/e2e $(BIN)/python -m conformance.escapes
	compile=($(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11)
	both=(--universal --no-emit-package codeexec pyproject.toml operator/pyproject.toml)
	"$${compile[@]}" "$${both[@]}" --all-extras --group dev --output-file requirements/dev.txt
	"$${compile[@]}" "$${both[@]}" --extra cli --extra checkpoints --output-file requirements/operator.txt
	"$${compile[@]}" --universal requirements/scan.in --output-file requirements/scan.txt
	# Code runs on the image's Python and nowhere else, and the image is made of wheels.
	"$${compile[@]}" --python-platform linux --only-binary :all: operator/sandbox/requirements.in --output-file requirements/sandbox.txt

format: venv ## Format the code
	@$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

clean: ## Delete the kind cluster (not one of yours), the virtual environment and the state folder; caches stay
	@if [[ -z "$(USER_KUBECONFIG)" ]]; then $(CLUSTER)/down.sh; fi
	rm -rf .venv $(STATE) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

kubeconfig: ## Print the path of the kubeconfig in use
	@echo "$$KUBECONFIG"
