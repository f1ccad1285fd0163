#!/usr/bin/env bash
# Deletes the test cluster and its image registry. What was built, and the Docker
# daemon, stay.
#
#   usage: down.sh
set -euo pipefail
# shellcheck source=tests/cluster/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

(($# == 0)) || die "usage: down.sh"
ensure_docker
for container in "$NODE" $REGISTRY_CONTAINER; do
  if docker container inspect "$container" >/dev/null 2>&1; then
    docker rm --force --volumes "$container" >/dev/null
  fi
done
rm -f "$STATE"/{kubeconfig,kind-config.yaml,images.env}
say "The cluster $CLUSTER is deleted."
