#!/usr/bin/env bash
# Writes a bill of materials of each image to .codeexec/sbom/NAME.cdx.json: CycloneDX JSON,
# made by syft from the image in the local Docker. Only for images that have changed.
#
#   usage: sbom.sh
set -euo pipefail
# shellcheck source=tests/cluster/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if (($# > 0)); then die "usage: sbom.sh"; fi
[[ -f $STATE/images.env ]] || die "there are no images yet: run make images"
# shellcheck source=/dev/null
source "$STATE/images.env"

catalog() { # NAME IMAGE
  local archive=$WORK/$1.tar sbom=$STATE/sbom/$1.cdx.json
  docker save --output "$archive" "$2"
  # An archive is all that it reads: it asks neither a registry nor for its own updates.
  SYFT_CHECK_FOR_APP_UPDATE=false SYFT_FILE_METADATA_SELECTION=none "$TOOLS/syft" scan "docker-archive:$archive" \
    --source-name "${2%@*}" --source-version "${2#*@}" --output "cyclonedx-json=$sbom.new"
  rm "$archive"
  mv "$sbom.new" "$sbom"
}

script tools.sh syft
mkdir -p "$STATE/sbom"
for name in operator sandbox; do
  image=${name^^}_IMAGE
  image=${!image}
  sbom=$STATE/sbom/$name.cdx.json
  key=$(key_of catalog sbom.sh "$SYFT_VERSION" "$image")
  if [[ -f $sbom && -f $sbom.key && $(<"$sbom.key") == "$key" ]]; then continue; fi
  docker image inspect "$image" >/dev/null 2>&1 || die "the local Docker does not have $image: run docker pull $image"
  run "$name-sbom" catalog "$name" "$image"
  printf '%s\n' "$key" >"$sbom.key"
done
say "The bills of materials are ready after $SECONDS s: $STATE/sbom"
