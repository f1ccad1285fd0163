# shellcheck shell=bash disable=SC2164 # who sources it ends at the first error
# Sourced by node-image.sh and tools.sh: the steps that build programs of the module in
# kubernetes/. Most of what the others consist of is compiled with hyperkube: it comes first.

NODE_BIN=$CACHE/node-bin # programs of the built node; tests start hyperkube from here
mkdir -p "$NODE_BIN"

# All Kubernetes programs and etcd in one binary.
kubernetes() {
  local version=k8s.io/component-base/version flags="-s -w" package
  for package in $version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$KUBERNETES_VERSION -X $package.gitMajor=1"
    flags+=" -X $package.gitMinor=$(cut -d. -f2 <<<"$KUBERNETES_VERSION")"
    flags+=" -X $package.gitTreeState=clean -X $package.gitCommit=$KUBERNETES_VERSION"
  done
  cd "$HERE/kubernetes"
  go build -ldflags "$flags" -o "$NODE_BIN/hyperkube" .
  ln -sf hyperkube "$NODE_BIN/kubectl"
  ln -sf hyperkube "$NODE_BIN/kubeadm"
}

coredns() {
  cd "$HERE/kubernetes"
  go build -ldflags '-s -w' -o "$NODE_BIN/coredns" ./coredns
}

helm_tool() {
  cd "$HERE/kubernetes"
  go build -ldflags '-s -w' -o "$TOOLS/helm" helm.sh/helm/v3/cmd/helm
}

helm_unittest_tool() {
  cd "$HERE/kubernetes"
  go build -ldflags '-s -w' -o "$TOOLS/helm-unittest" github.com/helm-unittest/helm-unittest/cmd/helm-unittest
}
