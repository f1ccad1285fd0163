# shellcheck shell=bash
# Sourced by the other scripts: paths, messages, cached steps, Docker, the image registry.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
STATE=$ROOT/.codeexec
CACHE=${CODEEXEC_KIND_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/codeexec-kind}
mkdir -p "$STATE" "$CACHE"/{bin,locks,logs,stamps,work}
CACHE=$(cd "$CACHE" && pwd)
TOOLS=$CACHE/bin # kind, kubectl, helm and so on, and nothing that Docker could mistake for its own
WORK=$CACHE/work
PATH=$TOOLS:$PATH
# Nothing here is debugged, and programs are linked without debug information: compiled without, they take a tenth less.
export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -gcflags=all=-dwarf=false" GOBIN=$TOOLS

CLUSTER=codeexec
NODE=$CLUSTER-control-plane
REGISTRY_CONTAINER=codeexec-registry # the node resolves this name
REGISTRY_HOST=localhost:5001         # as written in image references

# shellcheck source=tests/cluster/versions.env
source "$HERE/versions.env"

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# --- long commands and cached steps ----------------------------------------------

# run NAME COMMAND...: the command's output goes to CACHE/logs/NAME.log; a line with
# the elapsed time appears every 20 s. Its failure ends the script. Not to be called
# in a condition, where bash ignores "set -e" in the command too.
run() {
  local name=$1 log=$CACHE/logs/$1.log start=$SECONDS beats=0 job
  shift
  set -m # a process group of its own, so that stop_jobs ends all of it
  "$@" >"$log" 2>&1 </dev/null &
  job=$!
  set +m
  while kill -0 "$job" 2>/dev/null; do
    sleep 0.2
    if (((SECONDS - start) / 20 > beats)); then
      beats=$(((SECONDS - start) / 20))
      say "  $name: $((SECONDS - start)) s ..."
    fi
  done
  if ! wait "$job"; then
    tail -n 30 "$log" >&2
    die "$name failed, the lines above are the end of $log"
  fi
}

# What an interrupted script has started must not go on without it.
stop_jobs() {
  local job
  for job in $(jobs -p); do
    kill -- "-$job" 2>/dev/null || kill "$job" 2>/dev/null || true
  done
}
trap stop_jobs EXIT

# script NAME ARGUMENT...: runs another of these scripts, which ends with us.
script() { setpriv --pdeathsig TERM -- "$HERE/$1" "${@:2}"; }

# key_of STEP INPUT...: hash of the step's function and of its inputs. An input is a
# path below this folder or any other string.
key_of() {
  {
    declare -f "$1"
    go env GOVERSION
    shift
    local input
    for input in "$@"; do
      if [[ -e $HERE/$input ]]; then
        (cd "$HERE" && find "$input" -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum)
      else
        printf '%s\n' "$input"
      fi
    done
  } | sha256sum | cut -c1-16
}

# exclusively NAME COMMAND...: waits until no other script is at it. What the command leaves running must close the
# file descriptor "lock".
exclusively() {
  local lock name=$1
  shift
  exec {lock}>"$CACHE/locks/$name"
  flock --nonblock "$lock" || { say "  $name: another script is at it, waiting" && flock "$lock"; }
  "$@"
  exec {lock}>&-
}

# step NAME INPUT...: runs function NAME unless it has run with these inputs. Scripts that run at the same time and need
# the same step run it once.
step() {
  local key
  key=$(key_of "$@")
  if is_done "$1" "$key"; then return; fi
  exclusively "$1" new_step "$1" "$key"
}

is_done() { [[ -f $CACHE/stamps/$1 && $(<"$CACHE/stamps/$1") == "$2" ]]; } # NAME KEY

new_step() { # NAME KEY
  local start=$SECONDS
  if is_done "$@"; then return; fi
  rm -f "$CACHE/stamps/$1"
  say "  $1: started"
  run "$1" "$1"
  printf '%s\n' "$2" >"$CACHE/stamps/$1"
  say "  $1: done in $((SECONDS - start)) s"
}

stamp() { cat "$CACHE/stamps/$1"; } # key of a finished step, as input of another

# An image that someone has deleted from Docker has to be made again.
forget_missing_image() { # STEP IMAGE
  docker image inspect "$2" >/dev/null 2>&1 || rm -f "$CACHE/stamps/$1"
}

# module_dir MODULE@VERSION: downloads a Go module, prints where its files are.
module_dir() { (cd "$WORK" && go mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)",*/\1/p'); }

# copy_source MODULE@VERSION DIR: a copy of a module's files, to be built as main
# module: its own go.mod (with replacements and exclusions) and go.sum then count,
# and its files can be patched.
copy_source() {
  rm -rf "$2"
  cp -r "$(module_dir "$1")" "$2"
  chmod -R u+w "$2"
}

# --- Debian ------------------------------------------------------------------------

need_debian_packages() {
  local missing=() package
  command -v dpkg-query >/dev/null || die "this needs Debian's packages $*, and this machine is not a Debian"
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then return; fi
  [[ $(id -u) == 0 ]] || die "Debian packages are missing, and only root can install them: apt-get install ${missing[*]}"
  exclusively apt install_debian_packages "${missing[@]}"
}

install_debian_packages() {
  say "  installing Debian packages: $*"
  run apt-repair dpkg --configure -a # what an interrupted installation has left
  run apt-update apt-get update -qq
  run apt-install env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --fix-broken --no-install-recommends "$@"
}

debian_mirror() {
  # shellcheck disable=SC2016 # apt expands $(REPO_URI)
  printf '%s\n' "${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' \
    "Codename: $DEBIAN_RELEASE" 'Identifier: Packages' | head -n 1)}"
}

# --- Docker and the image registry -------------------------------------------------

lacks_cap_sys_resource() { # capability number 24
  local bounding
  bounding=$(awk '/^CapBnd/ {print $2}' /proc/self/status)
  (((16#$bounding >> 24 & 1) == 0))
}

# A machine that was copied or stopped hard still has the files that name Docker's
# process; dockerd refuses to start when another process has that number by now.
remove_stale_pid_file() { # FILE PROGRAM
  [[ -f $1 ]] || return 0
  [[ $(cat "/proc/$(<"$1")/comm" 2>/dev/null) == "$2" ]] || rm -f "$1"
}

# Uses the Docker daemon that answers; starts one of our own where none does.
ensure_docker() {
  if docker version >/dev/null 2>&1; then return; fi
  exclusively docker start_docker
}

start_docker() {
  if docker version >/dev/null 2>&1; then return; fi
  [[ $(uname) == Linux && $(id -u) == 0 ]] || die "Docker does not answer ('docker version' shows why): install it, start it, or join its group"
  need_debian_packages docker.io iptables python3
  local dir=$CACHE/docker
  mkdir -p "$dir"
  local runtime=""
  if lacks_cap_sys_resource; then
    cp "$HERE/docker/runc-shim" "$dir/runc-shim"
    runtime=", \"default-runtime\": \"shim\", \"runtimes\": {\"shim\": {\"path\": \"$dir/runc-shim\"}}"
  fi
  printf '{"data-root": "%s/data", "storage-driver": "overlay2"%s}\n' "$dir" "$runtime" >"$dir/daemon.json"
  remove_stale_pid_file /var/run/docker.pid dockerd
  remove_stale_pid_file /var/run/docker/containerd/containerd.pid containerd
  say "  starting dockerd (log: $dir/dockerd.log)"
  # From a subshell: it is not a job of this script and outlives it.
  (setsid dockerd --config-file "$dir/daemon.json" >"$dir/dockerd.log" 2>&1 </dev/null {lock}>&- &)
  local limit=$((SECONDS + 60))
  until docker version >/dev/null 2>&1; do
    if ((SECONDS > limit)); then
      tail -n 20 "$dir/dockerd.log" >&2
      die "dockerd did not come up within 60 s: see $dir/dockerd.log"
    fi
    sleep 0.5
  done
}

# Prints "official" where a container registry answers and "none" elsewhere. A
# cluster keeps the way it was made; CODEEXEC_REGISTRY overrides.
registry_way() {
  case ${CODEEXEC_REGISTRY:-} in
    official | none) echo "$CODEEXEC_REGISTRY" && return ;;
    ?*) die "CODEEXEC_REGISTRY is '$CODEEXEC_REGISTRY': set it to 'official' or 'none', or leave it out" ;;
  esac
  local made_of
  made_of=$(docker container inspect --format '{{.Config.Image}}' "$NODE" 2>/dev/null) || made_of=""
  if [[ $made_of == "$BUILT_NODE_IMAGE" ]]; then
    echo none
  elif [[ $made_of == "$OFFICIAL_NODE_IMAGE" ]] || docker image inspect "$OFFICIAL_NODE_IMAGE" >/dev/null 2>&1 ||
    timeout 15 docker manifest inspect "$OFFICIAL_NODE_IMAGE" >"$CACHE/logs/registry.log" 2>&1; then
    echo official
  else
    echo none
  fi
}

# Starts the local image registry, which lives as long as the cluster.
ensure_registry() {
  docker network inspect kind >/dev/null 2>&1 || die "there is no cluster yet: run make cluster"
  if ! docker container inspect $REGISTRY_CONTAINER >/dev/null 2>&1; then
    local way create=(docker create --name "$REGISTRY_CONTAINER" --network kind --publish "127.0.0.1:${REGISTRY_HOST##*:}:5000")
    way=$(registry_way)
    if [[ $way == none ]]; then
      run registry-container "${create[@]}" "$BUILT_REGISTRY_IMAGE"
    else
      run registry-container "${create[@]}" "$OFFICIAL_REGISTRY_IMAGE" serve /etc/registry.yaml
      docker cp "$HERE/docker/registry.yaml" $REGISTRY_CONTAINER:/etc/registry.yaml >/dev/null 2>&1
    fi
  fi
  docker start $REGISTRY_CONTAINER >/dev/null ||
    die "the container $REGISTRY_CONTAINER does not start: is port ${REGISTRY_HOST##*:} in use?"
}
