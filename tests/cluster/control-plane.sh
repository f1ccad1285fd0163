#!/usr/bin/env bash
# Builds the control plane of a Kubernetes version for the API tier: etcd, kube-apiserver,
# kube-controller-manager and kube-scheduler in one binary, from Go modules, once.
#
#   usage: control-plane.sh VERSION      (v1.32.13, for example)
#
# Prints its path, which CODEEXEC_HYPERKUBE takes. The version of the node is built by
# `tools.sh hyperkube`; this is for the others.
set -euo pipefail
# shellcheck source=tests/cluster/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
(($# == 1)) && [[ $1 =~ ^v1\.[0-9]+\.[0-9]+$ ]] || die "usage: control-plane.sh v1.MINOR.PATCH"
VERSION=$1
FOLDER=$CACHE/control-plane/$VERSION

# The module of that Kubernetes names its parts as folders that only its repository has;
# they are published as modules of their own, as v0.MINOR.PATCH. The rest is as it says.
control_plane() {
  local source=$WORK/control-plane-$VERSION kubernetes version=k8s.io/component-base/version flags="-s -w" part
  kubernetes=$(module_dir "k8s.io/kubernetes@$VERSION")
  rm -rf "$source"
  mkdir -p "$source" "$FOLDER"
  # The program of the node, without what only a node runs.
  awk '/^\t(case|default)/ { skip = /"(kube-proxy|kubelet|kubectl|kubeadm)"/ }
    /^\t(kubectl|proxy|kubeadm|kubelet) "|^\t"context"$/ { next }
    !skip' "$HERE/kubernetes/main.go" >"$source/main.go"
  sed -E 's|^module .*|module codeexec/control-plane|; s|=> \./staging/src/(.*)|=> \1 '"v0${VERSION#v1}"'|' \
    "$kubernetes/go.mod" >"$source/go.mod"
  cp "$kubernetes/go.sum" "$source/go.sum"
  cd "$source"
  go mod edit -require "k8s.io/kubernetes@$VERSION"
  for part in k8s.io/sample-{apiserver,cli-plugin,controller}; do
    go mod edit -droprequire "$part" -dropreplace "$part"
  done
  for part in $version k8s.io/client-go/pkg/version; do
    flags+=" -X $part.gitVersion=$VERSION -X $part.gitMajor=1 -X $part.gitMinor=$(cut -d. -f2 <<<"$VERSION")"
    flags+=" -X $part.gitTreeState=clean -X $part.gitCommit=$VERSION"
  done
  go build -mod=mod -ldflags "$flags" -o "$FOLDER/hyperkube" .
}

# One stamp for each version, so that they stay side by side.
built() { [[ -x $FOLDER/hyperkube && $(cat "$FOLDER/made-of" 2>/dev/null) == "$(key_of control_plane kubernetes/main.go)" ]]; }

build() {
  if built; then return; fi
  say "  Kubernetes $VERSION is being built: 5 to 15 minutes on two cores, once"
  run "control-plane-$VERSION" control_plane
  key_of control_plane kubernetes/main.go >"$FOLDER/made-of"
}

command -v go >/dev/null || die "there is no Go to build Kubernetes $VERSION with: install Go 1.26 or newer"
if ! built; then exclusively "control-plane-$VERSION" build >&2; fi
say "$FOLDER/hyperkube"
