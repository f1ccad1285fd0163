#!/usr/bin/env bash
# Proves that the cluster enforces NetworkPolicy: an unprotected pod reaches another
# pod, the API server, the kubelet and DNS; a pod under a deny-all policy reaches none
# of them. Prints PASS and FAIL lines; exits 1 if anything failed.
#
#   usage: check.sh [--kubeconfig FILE]      (default: .codeexec/kubeconfig)
set -euo pipefail
# shellcheck source=tests/cluster/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

export KUBECONFIG=$STATE/kubeconfig
if [[ ${1:-} == --kubeconfig && -n ${2:-} ]]; then
  KUBECONFIG=$2
elif (($# > 0)); then
  die "usage: check.sh [--kubeconfig FILE]"
fi
[[ -f $KUBECONFIG ]] || die "$KUBECONFIG does not exist: run make cluster"
[[ -f $STATE/images.env ]] || die "the pods of this check run the sandbox image, and there is none yet: run make images"
# shellcheck source=/dev/null
source "$STATE/images.env"

NAMESPACE=codeexec-cluster-check
k() { kubectl --namespace $NAMESPACE "$@"; }

pod() { # NAME COMMAND
  cat <<YAML
---
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {pod: $1}}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: main
      image: $SANDBOX_IMAGE
      command: $2
      resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {cpu: "1", memory: 128Mi}}
      securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
YAML
}

# A namespace that an interrupted check left behind would spoil this one.
kubectl delete namespace $NAMESPACE --ignore-not-found --timeout=60s >/dev/null
kubectl create namespace $NAMESPACE >/dev/null
trap 'kubectl delete namespace $NAMESPACE --wait=false >/dev/null' EXIT
{
  cat <<'YAML'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-all}
spec: {podSelector: {matchLabels: {pod: closed}}, policyTypes: [Ingress, Egress]}
YAML
  pod target '[python3, -I, -m, http.server, "8000", --directory, /opt]'
  pod open '[sleep, infinity]'
  pod closed '[sleep, infinity]'
} | k apply -f - >/dev/null
k wait --for=condition=Ready pod --all --timeout=300s >/dev/null || {
  k get events --field-selector type=Warning >&2
  die "the pods of the check do not start: the events above say why"
}

targets=(
  "pod=pod:$(k get pod target -o 'jsonpath={.status.podIP}'):8000"
  "api-server=api:$(k -n default get service kubernetes -o 'jsonpath={.spec.clusterIP}'):443"
  "kubelet=kubelet:$(k get pod target -o 'jsonpath={.status.hostIP}'):10250"
  "dns=dns:$(k -n kube-system get service kube-dns -o 'jsonpath={.spec.clusterIP}'):53"
)
failures=0

# expect POD RESULT WORDS SECONDS: the probes in POD must all give RESULT, each in so many seconds.
expect() {
  local name result results
  results=$(k exec -i "$1" -- env PROBE_SECONDS="$4" python3 -I - "${targets[@]}" <"$HERE/probe.py")
  while read -r name result; do
    if [[ $result == "$2" ]]; then
      say "PASS  pod '$1' $3 $name"
    else
      say "FAIL  pod '$1' $3 $name: $result"
      failures=$((failures + 1))
    fi
  done <<<"$results"
}

expect open answered "reaches" 60
expect closed timeout "cannot reach" 3
if ((failures > 0)); then
  die "$failures of the checks above failed: this cluster does not isolate pods, so no test on it means anything"
fi
say "NetworkPolicy is enforced (checked in $SECONDS s)"
