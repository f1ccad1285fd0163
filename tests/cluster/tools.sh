#!/usr/bin/env bash
# Makes sure that command-line tools are there. kind, kubectl and helm are taken from
# PATH where it has them; everything else is built from Go modules, once.
#
#   usage: tools.sh TOOL...     TOOL: kind kubectl hyperkube helm helm-unittest kubeconform k8s-schemas vale syft cosign chromium faketime
#          tools.sh --bin       prints the folder to put in front of PATH
#          tools.sh --schemas   prints the folder of the Kubernetes JSON schemas
#          tools.sh --sbom-schemas   prints the folder of the CycloneDX JSON schemas
set -euo pipefail
# shellcheck source=tests/cluster/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/cluster/kubernetes.sh
source "$HERE/kubernetes.sh"

SCHEMAS=$CACHE/schemas/$KUBERNETES_VERSION
SBOM_SCHEMAS=$CACHE/schemas/syft-$SYFT_VERSION

# --- the steps ---------------------------------------------------------------------

kind_tool() { go install -ldflags '-s -w' "sigs.k8s.io/kind@$KIND_VERSION"; }
kubeconform_tool() { go install -ldflags '-s -w' "github.com/yannh/kubeconform/cmd/kubeconform@$KUBECONFORM_VERSION"; }

# Parts of it are written in C.
vale_tool() {
  CGO_ENABLED=1 go install -ldflags "-s -w -X main.version=$VALE_VERSION" "github.com/vale-cli/vale/v3/cmd/vale@$VALE_VERSION"
}

# kubectl's published module has no main package: this is one.
kubectl_tool() {
  local source=$WORK/kubectl
  rm -rf "$source"
  mkdir "$source"
  cd "$source"
  cat >main.go <<GO
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() { os.Exit(cli.Run(cmd.NewDefaultKubectlCommand())) }
GO
  go mod init codeexec/kubectl
  go get "k8s.io/kubectl@${KUBERNETES_VERSION/v1/v0}"
  go mod tidy
  go build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$KUBERNETES_VERSION" -o "$TOOLS/kubectl" .
}

k8s_schemas() {
  python3 "$HERE/k8s_schemas.py" "$(module_dir "k8s.io/kubernetes@$KUBERNETES_VERSION")/api/openapi-spec/swagger.json" "$SCHEMAS"
}

# With the schemas that its output has to follow, which are in the same module.
syft_tool() {
  go install -ldflags "-s -w -X main.version=${SYFT_VERSION#v}" "github.com/anchore/syft/cmd/syft@$SYFT_VERSION"
  install -D -m 644 -t "$SBOM_SCHEMAS" "$(module_dir "github.com/anchore/syft@$SYFT_VERSION")"/schema/cyclonedx/*.json
}

cosign_tool() { go install -ldflags '-s -w' "github.com/sigstore/cosign/v3/cmd/cosign@$COSIGN_VERSION"; }

# Debian's, of course: it is no Go program.
chromium_tool() {
  for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then return; fi
  done
  need_debian_packages chromium
}

# Clocks that are wrong, for programs under test.
faketime_tool() {
  compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || need_debian_packages libfaketime
}

# --- which of them are needed ------------------------------------------------------

on_path() { type -aP "$1" | grep -qvF "$TOOLS/"; }

needs_build() { # TOOL
  case $1 in
    # A built node image holds files of kind's and goes with that version only.
    kind) [[ $(registry_way) == none ]] || ! on_path kind ;;
    # Where the node image is built, kubectl is a part of it.
    kubectl) [[ ! -f $CACHE/stamps/kubernetes ]] && ! on_path kubectl ;;
    helm) ! on_path helm ;;
    hyperkube | helm-unittest | kubeconform | k8s-schemas | vale | syft | cosign) true ;;
    *) die "tools.sh knows no tool '$1', only: kind kubectl hyperkube helm helm-unittest kubeconform k8s-schemas vale syft cosign chromium faketime" ;;
  esac
}

case ${1:-} in
  --bin) say "$TOOLS" && exit ;;
  --schemas) say "$SCHEMAS" && exit ;;
  --sbom-schemas) say "$SBOM_SCHEMAS" && exit ;;
esac
exec 1>&2 # callers capture standard output
needed=()
for tool in "$@"; do
  if [[ $tool == chromium || $tool == faketime ]]; then
    "${tool}_tool"
  elif needs_build "$tool"; then
    needed+=("$tool")
  fi
done
if ((${#needed[@]} == 0)); then exit; fi
command -v go >/dev/null || die "not found: ${needed[*]}; and neither is Go, to build them. Install Go 1.26 or newer (kind, kubectl and helm can be installed instead)"
for tool in "${needed[@]}"; do
  case $tool in
    kind) step kind_tool "$KIND_VERSION" ;;
    kubectl) step kubectl_tool "$KUBERNETES_VERSION" ;;
    hyperkube) step kubernetes kubernetes "$KUBERNETES_VERSION" ;;
    helm) step helm_tool kubernetes ;;
    helm-unittest) step helm_unittest_tool kubernetes ;;
    kubeconform) step kubeconform_tool "$KUBECONFORM_VERSION" ;;
    k8s-schemas) step k8s_schemas k8s_schemas.py "$KUBERNETES_VERSION" ;;
    vale)
      command -v gcc >/dev/null || need_debian_packages gcc libc6-dev
      step vale_tool "$VALE_VERSION"
      ;;
    syft) step syft_tool "$SYFT_VERSION" ;;
    cosign) step cosign_tool "$COSIGN_VERSION" ;;
  esac
done
