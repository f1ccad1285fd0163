#!/usr/bin/env bash
# Builds the operator and the sandbox image, pushes them, signs them, attests what is in
# them and what they were made of, and writes their references by digest to
# .codeexec/images.env. Builds only what has changed.
#
#   usage: images.sh                              to the test cluster's registry
#          images.sh --push-to REGISTRY/PREFIX    to a registry of yours
#          images.sh --build-only                 pushes nothing: for who has no cluster yet
#
# CODEEXEC_SIGNING_KEY names the private key (docs/images.md); without it one is made in
# .codeexec/signatures, for the test cluster.
set -euo pipefail
# shellcheck source=tests/cluster/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prefix=$REGISTRY_HOST/codeexec
build_only="" reference=""
if [[ ${1:-} == --push-to && -n ${2:-} ]]; then
  prefix=${2%/}
elif [[ ${1:-} == --build-only ]]; then
  build_only=yes
elif (($# > 0)); then
  die "usage: images.sh [--push-to REGISTRY/PREFIX | --build-only]"
fi
VENV=$ROOT/.venv/bin
for tool in uv hatchling; do
  [[ -x $VENV/$tool ]] || die "$VENV/$tool is missing: run make venv"
done

# --- the base image where none can be pulled: Debian with Python --------------------

PYTHON_BASE=codeexec/python-base:local

python_base() {
  local root=$WORK/python-base
  rm -rf "$root"
  debootstrap --variant=minbase --include=ca-certificates,netbase,python3,tzdata "$DEBIAN_RELEASE" "$root" "$(debian_mirror)"
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/usr/share/{doc,man,locale}/*
  ln -s python3 "$root/usr/bin/python"
  tar -C "$root" -c . | docker import - $PYTHON_BASE
  rm -rf "$root"
}

# --- the images --------------------------------------------------------------------

# hash_of PATH...: hash of the files, of this script and of what else goes in.
hash_of() {
  {
    printf '%s\n' "$base" "$platform"
    cd "$ROOT"
    find tests/cluster/images.sh "$@" -type f ! -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
  } | sha256sum | cut -c1-16
}

# install_wheels DIR UV-ARGUMENT...: the files of wheels for the images' Python.
install_wheels() {
  local dir=$1
  shift
  "$VENV/uv" pip install --quiet --no-config --python "$VENV/python" --python-version 3.11 \
    --python-platform "$platform" --only-binary :all: --no-compile-bytecode --target "$dir" "$@"
  # Programs' first lines name this machine's Python, and the lists of files hash them.
  rm -rf "${dir:?}"/{bin,*.dist-info/RECORD}
}

operator_context() { # DIR
  install_wheels "$1/dependencies" --require-hashes --requirements "$ROOT/requirements/operator.txt"
  local distribution
  for distribution in . operator; do
    (cd "$ROOT/$distribution" && "$VENV/hatchling" build --target wheel --directory "$1/wheels")
  done
  install_wheels "$1/codeexec" --no-deps "$1"/wheels/*.whl
  cp "$ROOT/operator/Dockerfile" "$1/"
}

sandbox_context() { # DIR
  install_wheels "$1/packages" --require-hashes --requirements "$ROOT/requirements/sandbox.txt"
  # The packages' own test suites would be a quarter of the image's layer; nothing else imports them.
  find "$1/packages" -type d -name tests -prune -exec rm -rf {} +
  cp "$ROOT"/operator/sandbox/{Dockerfile,*.py} "$1/"
}

build() { # NAME IMAGE
  local arguments=(--network none --tag "$2")
  context=$(mktemp -d) # not local: the trap needs it
  trap 'rm -rf "$context"' EXIT
  "$1_context" "$context"
  if [[ $way == none ]]; then arguments+=(--build-arg "BASE_IMAGE=$PYTHON_BASE"); fi
  # BuildKit where it is installed; otherwise the builder that every Docker has.
  if docker buildx version >/dev/null 2>&1; then
    docker build --load --provenance=false "${arguments[@]}" "$context"
  else
    DOCKER_BUILDKIT=0 docker build "${arguments[@]}" "$context"
  fi
}

# The base image by digest, for the record of what an image was made of.
base_reference() { # DOCKERFILE
  if [[ $way == none ]]; then
    printf '%s@%s\n' "$PYTHON_BASE" "$(docker image inspect --format '{{.Id}}' "$PYTHON_BASE")"
  else
    sed -n 's/^ARG BASE_IMAGE=//p' "$1"
  fi
}

attest() { # REFERENCE NAME IMAGE DOCKERFILE PATH...
  PYTHONPATH=$ROOT/tests/support "$VENV/python" -m image_release attest --name "$2" --sources "${3##*:}" \
    --base "$(base_reference "$4")" "$1" "${@:5}"
}

# publish NAME DOCKERFILE PATH...: builds unless that has been done for the same files, and pushes and signs;
# sets "reference" to the image by digest, and "signature" to the file with its signature.
publish() {
  local name=$1 dockerfile=$2 image
  shift
  image=$prefix/$name:$(hash_of "$@")
  if ! docker image inspect "$image" >/dev/null 2>&1; then
    say "  $name image: building"
    run "$name-image" build "$name" "$image"
  fi
  if [[ -n $build_only ]]; then return; fi
  run "$name-push" docker push "$image"
  reference=$(sed -n 's/.*digest: \(sha256:[0-9a-f]*\).*/\1/p' "$CACHE/logs/$name-push.log")
  [[ -n $reference ]] || die "docker push told no digest for $image: see $CACHE/logs/$name-push.log"
  reference=$prefix/$name@$reference
  run "$name-signature" attest "$reference" "$name" "$image" "$ROOT/$dockerfile" tests/cluster/images.sh "$@"
  signature=$(tail -n 1 "$CACHE/logs/$name-signature.log")
}

ensure_docker
way=$(registry_way)
if [[ -z $build_only && $prefix == "$REGISTRY_HOST"/* ]]; then ensure_registry; fi
case $(docker version --format '{{.Server.Arch}}') in
  arm64) platform=aarch64-manylinux_2_28 ;;
  *) platform=x86_64-manylinux_2_28 ;;
esac
base=official
if [[ $way == none ]]; then
  need_debian_packages debootstrap
  forget_missing_image python_base $PYTHON_BASE
  step python_base "$DEBIAN_RELEASE"
  base=$(stamp python_base)
fi

publish operator operator/Dockerfile operator/Dockerfile operator/codeexec_operator crds/codeexec_api executor_client codeexec \
  pyproject.toml operator/pyproject.toml hatch_build.py requirements/operator.txt
operator=$reference
publish sandbox operator/sandbox/Dockerfile operator/sandbox requirements/sandbox.txt
sandbox=$reference
if [[ -n $build_only ]]; then say "The images are built after $SECONDS s" && exit; fi
printf '%s\n' "OPERATOR_IMAGE=$operator" "SANDBOX_IMAGE=$sandbox" "SANDBOX_SIGNATURE=$signature" \
  "IMAGE_KEYS=$STATE/signatures/signing.pub" >"$STATE/images.env"
say "The images are ready after $SECONDS s: $STATE/images.env"
