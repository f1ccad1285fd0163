#!/usr/bin/env bash
# Builds the kind node image and the registry image from Go modules and Debian
# packages, for machines where no container registry answers. Called by up.sh.
#
#   usage: node-image.sh
#
# Everything lands in CACHE (see README.md); a step runs again only when one of its
# inputs (its code below, its files, a version, the Go version) has changed.
set -euo pipefail
# shellcheck source=tests/cluster/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/cluster/kubernetes.sh
source "$HERE/kubernetes.sh"
BIN=$NODE_BIN
export GOBIN=$BIN DOCKER_BUILDKIT=0

# edit FILE SED-SCRIPT: changes a copied file; fails if nothing changes.
edit() {
  sed -i.original "$2" "$1"
  if cmp -s "$1" "$1.original"; then
    say "nothing to change in $1"
    return 1
  fi
}

# Debian with what kind's node needs, plus clang for Cilium.
node_base() {
  local packages root=$WORK/node-base
  packages=(
    systemd dbus bash ca-certificates curl jq procps pigz          # the node itself
    conntrack ethtool iproute2 ipset iptables nftables socat       # Kubernetes, Cilium
    kmod libseccomp2 mount util-linux                              # containerd, runc
    "clang-$CLANG_MAJOR" bpftool                                   # Cilium
  )
  rm -rf "$root"
  debootstrap --variant=minbase --include="$(IFS=, && echo "${packages[*]}")" "$DEBIAN_RELEASE" "$root" "$(debian_mirror)"
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}/*
  : >"$root/etc/machine-id"
}

# The pause image's program: 70 lines of C that wait for a signal.
pause() {
  gcc -Os -Wall -static -s -DVERSION="$KUBERNETES_VERSION" -o "$BIN/pause" \
    "$(module_dir "k8s.io/kubernetes@$KUBERNETES_VERSION")/build/pause/linux/pause.c"
}

cilium() {
  local source=$WORK/cilium
  copy_source "github.com/cilium/cilium@$CILIUM_VERSION" "$source"
  cd "$source"
  # A kernel without loadable modules has no /proc/modules: read a list of ours.
  edit pkg/datapath/linux/modules/modules_linux.go 's#"/proc/modules"#"/etc/kmodules"#'
  go build -mod=readonly -tags ipam_provider_operator -o "$WORK/cilium-bin/" \
    -ldflags "-s -w -X 'github.com/cilium/cilium/pkg/version.ciliumVersion=${CILIUM_VERSION#v} local'" \
    ./daemon ./operator ./cilium-dbg ./plugins/cilium-cni
  mv "$WORK/cilium-bin/daemon" "$BIN/cilium-agent"
  mv "$WORK/cilium-bin/operator" "$BIN/cilium-operator"
  mv "$WORK"/cilium-bin/cilium-{dbg,cni} "$BIN/"
}

containerd() {
  local source=$WORK/containerd
  copy_source "github.com/containerd/containerd/v2@$CONTAINERD_VERSION" "$source"
  cd "$source"
  go build -mod=readonly -tags 'no_aufs no_zfs no_btrfs no_devmapper' -o "$BIN/" \
    -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$CONTAINERD_VERSION" \
    ./cmd/containerd ./cmd/containerd-shim-runc-v2 ./cmd/ctr
  CGO_ENABLED=1 go install -tags seccomp -ldflags '-s -w' "github.com/opencontainers/runc@$RUNC_VERSION"
  go install -ldflags '-s -w' "github.com/containernetworking/plugins/plugins/main/loopback@$CNI_PLUGINS_VERSION"
}

gvisor() {
  local source=$WORK/gvisor
  copy_source "gvisor.dev/gvisor@$GVISOR_VERSION" "$source"
  cd "$source"
  # The shim gives its child the OOM score -999, which takes CAP_SYS_RESOURCE.
  edit pkg/shim/v1/manager.go 's/oomScoreMax = -999/oomScoreMax = 0/'
  # runsc's option ignore-cgroups (see runsc.toml) does not reach this function.
  edit runsc/container/container.go \
    '/^func (c \*Container) setupCgroupForSubcontainer/,/^}/s/if spec.Linux == nil/if conf.IgnoreCgroups || spec.Linux == nil/'
  go build -mod=readonly -ldflags '-s -w' -o "$BIN/runsc" ./runsc
  go build -mod=readonly -ldflags '-s -w' -o "$BIN/containerd-shim-runsc-v1" ./shim
}

registry() {
  cd "$HERE/registry"
  go build -ldflags '-s -w' -o "$BIN/registry" .
}

# scratch_image NAME ENTRYPOINT FILE...: an image that holds just these files.
scratch_image() {
  local name=$1 entrypoint=$2 context=$WORK/image
  shift 2
  rm -rf "$context"
  mkdir -p "$context/bin"
  cp -a "$@" "$context/bin/"
  printf 'FROM scratch\nENV PATH=/bin\nCOPY bin/ /bin/\n' >"$context/Dockerfile"
  if [[ -n $entrypoint ]]; then printf 'ENTRYPOINT ["%s"]\n' "$entrypoint" >>"$context/Dockerfile"; fi
  docker build -q -t "$name" "$context"
}

registry_image() { scratch_image "$BUILT_REGISTRY_IMAGE" /bin/registry "$BIN/registry"; }

# The images that kubeadm's static pods, CoreDNS and every pod's sandbox use.
core_images() {
  local name
  for name in etcd kube-apiserver kube-controller-manager kube-scheduler; do
    ln -sf hyperkube "$BIN/$name"
  done
  scratch_image codeexec/control-plane:local "" "$BIN"/{hyperkube,etcd,kube-apiserver,kube-controller-manager,kube-scheduler}
  scratch_image codeexec/coredns:local /bin/coredns "$BIN/coredns"
  scratch_image codeexec/pause:local /bin/pause "$BIN/pause"
  docker save -o "$WORK/core.tar" codeexec/{control-plane,coredns,pause}:local
  "$BIN/kubeadm" config images list --kubernetes-version "$KUBERNETES_VERSION" >"$WORK/image-names"
}

node_image() {
  local context=$WORK/node kind_files
  kind_files=$(module_dir "sigs.k8s.io/kind@$KIND_VERSION")/images/base/files
  rm -rf "$context"
  mkdir -p "$context"/{bin,cni,bpf,kind-files,rootfs}
  cp -r "$kind_files/." "$context/kind-files"
  chmod -R u=rwX,go=rX "$context/kind-files"
  chmod 755 "$context"/kind-files/usr/local/bin/* "$context"/kind-files/kind/bin/*
  cp -r "$HERE/node/rootfs/." "$context/rootfs"
  cp "$BIN"/{hyperkube,containerd,containerd-shim-runc-v2,ctr,runc,runsc,containerd-shim-runsc-v1} "$context/bin"
  cp "$BIN"/{cilium-agent,cilium-operator,cilium-dbg} "$context/bin"
  cp "$BIN"/{cilium-cni,loopback} "$context/cni"
  cp -r "$WORK/cilium/bpf/." "$context/bpf"
  cp "$WORK/core.tar" "$HERE"/node/{Dockerfile,containerd-extra.toml} "$context"
  cp "$WORK/image-names" "$context/names"
  tar -C "$WORK/node-base" -c . | docker import - codeexec/kind-node-base:local
  docker build --build-arg KUBERNETES_VERSION="$KUBERNETES_VERSION" --build-arg CLANG_MAJOR="$CLANG_MAJOR" \
    -t "$BUILT_NODE_IMAGE" "$context"
  rm -rf "$context"
}

command -v go >/dev/null || die "no container registry answers, so Kubernetes has to be built, and Go is not installed: install Go 1.26 or newer"
need_debian_packages ca-certificates debootstrap gcc libc6-dev libseccomp-dev pkg-config python3
ensure_docker

# begin COMMAND...: runs it beside the others; what it has started ends with it. The job's number goes to "begun".
begin() {
  (trap stop_jobs EXIT; "$@") &
  begun=$!
}

# end_of JOB: waits for it. Its failure, which it has told by now, is ours.
end_of() {
  local status=0
  wait "$1" || status=$?
  # 127: bash has forgotten a job that ended long ago. Then the stamps tell, below.
  ((status == 0 || status == 127)) || exit "$status"
}

# The standard library first: the builds below share it, and two at a time would compile it twice.
go_std() { go build net/http/httputil encoding/xml go/parser html/template; }

node_programs() {
  step cilium "$CILIUM_VERSION"
  step containerd "$CONTAINERD_VERSION" "$RUNC_VERSION" "$CNI_PLUGINS_VERSION"
  step gvisor "$GVISOR_VERSION"
}

kubernetes_images() {
  step kubernetes kubernetes "$KUBERNETES_VERSION"
  ln -sf ../node-bin/hyperkube "$TOOLS/kubectl"
  step coredns kubernetes
  step pause "$KUBERNETES_VERSION"
  forget_missing_image core_images codeexec/control-plane:local
  step core_images "$(stamp kubernetes)" "$(stamp coredns)" "$(stamp pause)"
  script tools.sh kind helm # wanted soon, and most of helm is compiled by now
}

# Debian's base waits for the network and the disk, Go for the processors; and while one program is linked, which takes
# one processor, another one is compiled.
begin step node_base "$DEBIAN_RELEASE" "$CLANG_MAJOR"
base=$begun
step go_std
begin node_programs
programs=$begun
kubernetes_images
step registry registry
forget_missing_image registry_image "$BUILT_REGISTRY_IMAGE"
step registry_image "$(stamp registry)"
end_of "$programs"
end_of "$base"

forget_missing_image node_image "$BUILT_NODE_IMAGE"
for name in node_base cilium containerd gvisor; do
  [[ -f $CACHE/stamps/$name ]] || die "$name failed: see $CACHE/logs/$name.log"
done
step node_image node "$KIND_VERSION" \
  "$(stamp node_base)" "$(stamp core_images)" "$(stamp cilium)" "$(stamp containerd)" "$(stamp gvisor)"
