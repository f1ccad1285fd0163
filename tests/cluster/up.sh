#!/usr/bin/env bash
# Brings up the test cluster "codeexec", or reuses it, and waits until it is usable.
#
#   usage: up.sh [--kubeconfig FILE]      (default: .codeexec/kubeconfig)
set -euo pipefail
# shellcheck source=tests/cluster/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

kubeconfig=$STATE/kubeconfig
if [[ ${1:-} == --kubeconfig && -n ${2:-} ]]; then
  kubeconfig=$2
elif (($# > 0)); then
  die "usage: up.sh [--kubeconfig FILE]"
fi
kubeconfig=$(realpath --canonicalize-missing "$kubeconfig")

# --- the checks that make a cluster usable -----------------------------------------

# Each is made again until it passes, so none may wait long for an answer: an API server that has just started leaves
# some requests without one.
k() { kubectl --kubeconfig "$kubeconfig" --request-timeout=5s "$@"; }

api_server() { k get --raw /readyz; }

pod_network() {
  if [[ $way == none ]]; then
    docker exec "$NODE" cilium status --brief
  else
    k -n kube-system rollout status daemonset/kindnet --timeout=5s
  fi
}

# After a restart the cluster first shows what it knew before: only a lease that is
# younger than the container tells that the kubelet is back.
node_ready() {
  local started renewed
  started=$(docker container inspect --format '{{.State.StartedAt}}' "$NODE")
  renewed=$(k -n kube-node-lease get lease "$NODE" -o 'jsonpath={.spec.renewTime}')
  [[ $renewed > $started ]] && k wait --for=condition=Ready "node/$NODE" --timeout=5s
}

# The API server's proxy reaches CoreDNS, so the pod network works as well.
cluster_dns() { k get --raw /api/v1/namespaces/kube-system/services/kube-dns:metrics/proxy/metrics; }

service_account() { k -n default get serviceaccount default; }

RUNTIME_CLASSES=/apis/node.k8s.io/v1/runtimeclasses

# It is created neither with the time limit of the checks nor by "apply", which first asks for the whole API's
# description: that takes a new API server seconds of CPU.
runtime_class() {
  [[ $way != none ]] || k get --raw $RUNTIME_CLASSES/gvisor ||
    kubectl --kubeconfig "$kubeconfig" create --raw $RUNTIME_CLASSES -f - <<JSON
{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"}
JSON
}

# usable_within SECONDS: waits for each of the above in turn.
usable_within() {
  local check limit=$((SECONDS + $1)) beat=$((SECONDS + 20))
  for check in api_server pod_network node_ready cluster_dns service_account runtime_class; do
    until "$check" >"$CACHE/logs/up-$check.log" 2>&1; do
      if ((SECONDS >= limit)); then
        say "  ${check//_/ }: not there after $1 s, last answer: $(tail -n 1 "$CACHE/logs/up-$check.log")"
        return 1
      fi
      if ((SECONDS >= beat)); then
        say "  ${check//_/ }: waiting, $SECONDS s ..."
        beat=$((SECONDS + 20))
      fi
      sleep 0.5
    done
  done
  say "  usable: $SECONDS s"
}

# --- the cluster -------------------------------------------------------------------

MADE_WITH=/kind/made-with # on the node: hash of what the cluster was made with

delete_cluster() { run cluster-delete kind delete cluster --name $CLUSTER --kubeconfig "$kubeconfig"; }

cluster_config() {
  cat "$ROOT/kind-config.yaml"
  # The built node image has Cilium, which is CNI and kube-proxy in one.
  if [[ $way == none ]]; then printf 'networking:\n  disableDefaultCNI: true\n  kubeProxyMode: none\n'; fi
}

# What takes effect only when a cluster is made, the node image aside.
config_key() { { cluster_config && cat "$HERE"/{audit-policy.yaml,kubeadm-patches/*}; } | sha256sum | cut -c1-16; }

# Of a stopped node, too. Empty if the cluster was made without, or not to the end.
made_with() { docker cp "$NODE:$MADE_WITH" - 2>/dev/null | tar -xO 2>/dev/null || true; }

create_cluster() {
  cluster_config >"$STATE/kind-config.yaml"
  run cluster-create env --chdir="$ROOT" \
    kind create cluster --image "$image" --config "$STATE/kind-config.yaml" --kubeconfig "$kubeconfig"
  say "  created: $SECONDS s"
  if [[ $way == none ]]; then
    docker exec "$NODE" systemctl enable --quiet --now cilium-operator cilium-agent
  fi
  config_key | docker exec -i "$NODE" tee $MADE_WITH >/dev/null
}

# The node pulls image references that start with REGISTRY_HOST from our registry.
connect_registry() {
  ensure_registry
  docker exec -i "$NODE" sh -c "mkdir -p /etc/containerd/certs.d/$REGISTRY_HOST && cat >/etc/containerd/certs.d/$REGISTRY_HOST/hosts.toml" <<TOML
[host."http://$REGISTRY_CONTAINER:5000"]
TOML
}

ensure_docker
way=$(registry_way)
if [[ $way == none ]]; then
  image=$BUILT_NODE_IMAGE
  if ! docker image inspect "$image" >/dev/null 2>&1; then
    say "No container registry answers, so Kubernetes is built here: 5 to 20 minutes on two cores, once."
  fi
  script node-image.sh
else
  image=$OFFICIAL_NODE_IMAGE
  if ! docker image inspect "$image" >/dev/null 2>&1; then
    say "Pulling the node image. (CODEEXEC_REGISTRY=none builds one instead, on Debian.)"
    run node-image-pull docker pull "$image"
  fi
fi
script tools.sh kind kubectl

if existing=$(docker container inspect --format '{{.Image}} {{.State.Running}}' "$NODE" 2>/dev/null); then
  if [[ ${existing% *} != $(docker image inspect --format '{{.Id}}' "$image") ]]; then
    say "The cluster $CLUSTER is made from another node image: it is made anew."
    delete_cluster
    existing=""
  elif [[ $(made_with) != $(config_key) ]]; then
    say "The cluster $CLUSTER was made with another kind-config.yaml, audit policy or kubeadm patch: it is made anew."
    delete_cluster
    existing=""
  else
    say "Reusing the cluster $CLUSTER."
    if [[ ${existing#* } == false ]]; then docker start "$NODE" >/dev/null; fi
    kind get kubeconfig --name $CLUSTER >"$kubeconfig"
    if ! usable_within 120; then
      say "The cluster $CLUSTER does not come back: it is made anew."
      delete_cluster
      existing=""
    fi
  fi
fi
if [[ -z $existing ]]; then
  say "Creating the cluster $CLUSTER."
  create_cluster
  usable_within 300 || die "the cluster $CLUSTER did not become usable: 'docker logs $NODE' and $CACHE/logs tell more"
fi
chmod 600 "$kubeconfig"
connect_registry
say "The cluster $CLUSTER is up after $SECONDS s. Its kubeconfig: $kubeconfig"
