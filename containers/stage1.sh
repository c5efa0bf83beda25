# Stage 1, shared by build_vllm_mi300x.sh and build_cuda.sh, which set
#   image       the name of what is made              chip       what it is compiled for
#   dockerfile  its path in vLLM's clone              target     the stage of that Dockerfile
#   prebuilt    what --prebuilt starts from           arguments  the build arguments, NAME=VALUE each
#   oldest      the first vLLM that works there
# and call make_image.
# shellcheck shell=bash disable=SC2154 # what those two set
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wanted=${VLLM_VERSION:-}
# shellcheck source=containers/versions.env
. "$here/versions.env"
VLLM_VERSION=v${wanted:-$VLLM_VERSION}
VLLM_VERSION=${VLLM_VERSION/#vv/v}
clone=${XDG_CACHE_HOME:-$HOME/.cache}/qwen-vl-grpo/vllm-$VLLM_VERSION
needed_gb=150

usage() {
    cat <<END
Usage: bash $(basename "$0") [--prebuilt] [--dry_run] [--jobs N] [--push REPOSITORY]

Makes $image:$VLLM_VERSION, the base image for \`docker build -t … .\` (docs/containers.md).
  --prebuilt         start from $prebuilt instead of compiling: minutes instead of hours
  --dry_run          print the commands and run none
  --jobs N           compilers at a time (default: one a core, and one for every 8 GB of memory at most)
  --push REPOSITORY  push it as REPOSITORY:$VLLM_VERSION too
VLLM_VERSION=v0.26.0 in the environment chooses another version.
END
}

refuse() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

older() { [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

read_arguments() {
    compile=true dry_run=false jobs='' push=''
    while [ $# -gt 0 ]; do
        case $1 in
            --prebuilt) compile=false ;;
            --dry_run) dry_run=true ;;
            --jobs | --push)
                [ $# -gt 1 ] || refuse "$1 needs a value; see --help"
                [ "$1" = --jobs ] && jobs=$2 || push=$2
                shift
                ;;
            -h | --help) usage && exit 0 ;;
            *) refuse "$1 is none of --prebuilt, --dry_run, --jobs, --push; see --help" ;;
        esac
        shift
    done
    if [ -z "$jobs" ]; then
        jobs=$(nproc)
        local by_memory=$(($(awk '/MemTotal/ {print int($2 / 8000000)}' /proc/meminfo) + 1))
        [ "$jobs" -le "$by_memory" ] || jobs=$by_memory
    fi
    [[ $jobs =~ ^[1-9][0-9]*$ ]] || refuse "--jobs is '$jobs' and must be a number from 1 on"
    recipe="$VLLM_VERSION $target ${arguments[*]}"
    $compile || recipe=$prebuilt
    arguments+=("max_jobs=$jobs")
}

check_version() {
    [[ $VLLM_VERSION =~ ^v[0-9]+\.[0-9]+\.[0-9]+(\.post[0-9]+)?$ ]] || refuse "VLLM_VERSION is $VLLM_VERSION and must be a release such as v0.25.1"
    if older "$VLLM_VERSION" "$VLLM_OLDEST" || older "$VLLM_NEWEST" "$VLLM_VERSION"; then
        refuse "VLLM_VERSION is $VLLM_VERSION and the pinned TRL works with $VLLM_OLDEST to $VLLM_NEWEST; choose one of these"
    fi
    if older "$VLLM_VERSION" "$oldest"; then
        refuse "VLLM_VERSION is $VLLM_VERSION, and on ROCm sleep mode frees memory from $oldest on only; choose $oldest to $VLLM_NEWEST"
    fi
}

check_machine() {
    command -v docker >/dev/null || refuse "docker is not installed; see https://docs.docker.com/engine/install"
    docker info >/dev/null 2>&1 || refuse "no Docker Engine answers; start it, or join the group docker"
    docker buildx version >/dev/null 2>&1 || refuse "docker has no buildx; install docker-buildx-plugin (Debian: docker-buildx)"
    local architecture root free
    architecture=$(docker version --format '{{.Server.Arch}}')
    [ "$architecture" = amd64 ] || refuse "the Docker Engine runs on $architecture and $image is for amd64; build it on the node that will run it"
    $compile || return 0
    command -v git >/dev/null || refuse "git is not installed, and vLLM's build asks its clone for the version"
    root=$(docker info --format '{{.DockerRootDir}}')
    [ -d "$root" ] || return 0 # the engine is on another machine
    free=$(($(df --output=avail -k "$root" | tail -n 1) / 1000000))
    [ "$free" -ge "$needed_gb" ] || refuse "$root has $free GB free and the build takes up to $needed_gb; free some, or use --prebuilt"
}

# Nothing happens twice: an image that was made with the same arguments is kept.
made_already() {
    [ "$(docker image inspect --format '{{index .Config.Labels "qwen-vl-grpo.stage1"}}' "$image:$VLLM_VERSION" 2>/dev/null)" = "$recipe" ]
}

fetch_vllm() {
    if [ ! -d "$clone" ]; then
        $dry_run || rm -rf "$clone.part" # of a clone that was interrupted
        run git clone --quiet --depth 1 --branch "$VLLM_VERSION" https://github.com/vllm-project/vllm.git "$clone.part" ||
            refuse "vLLM could not be cloned; git's message stands above"
        run mv "$clone.part" "$clone"
    elif [ "$(git -C "$clone" describe --tags --exact-match 2>/dev/null)" != "$VLLM_VERSION" ] || [ -n "$(git -C "$clone" status --porcelain)" ]; then
        refuse "$clone is not a clean clone of $VLLM_VERSION; remove it and start again"
    fi
}

# BuildKit only warns of an argument that a Dockerfile does not know, and compiles for every GPU there is.
check_dockerfile() {
    local file=$clone/$dockerfile argument
    [ -f "$file" ] || refuse "vLLM $VLLM_VERSION has no $dockerfile; this script knows the layout of v0.22.0 to v0.31.0"
    for argument in "${arguments[@]}"; do
        grep -qE "^ARG ${argument%%=*}([= ]|$)" "$file" || refuse "$dockerfile of vLLM $VLLM_VERSION has no ARG ${argument%%=*}; look there for its new name"
    done
    grep -qE "^FROM .* AS $target$" "$file" || refuse "$dockerfile of vLLM $VLLM_VERSION has no stage $target; look there for its new name"
}

run() {
    if $dry_run; then
        printf '%q ' "$@" && echo
    else
        "$@"
    fi
}

make_image() {
    read_arguments "$@"
    check_version
    $dry_run || check_machine
    if ! $dry_run && made_already; then
        echo "$image:$VLLM_VERSION is there already; \`docker rmi $image:$VLLM_VERSION\` to make it again"
    elif $compile; then
        echo "Compiles vLLM $VLLM_VERSION for $chip with $jobs jobs: hours, and up to $needed_gb GB of disk (estimates, not measured)." \
            "It may be stopped and started again; what is done is kept in Docker's build cache." >&2
        fetch_vllm
        $dry_run && [ ! -d "$clone" ] || check_dockerfile
        local argument options=()
        for argument in "${arguments[@]}"; do options+=(--build-arg "$argument"); done
        run docker buildx build --load --file "$clone/$dockerfile" --target "$target" "${options[@]}" \
            --label "qwen-vl-grpo.stage1=$recipe" --tag "$image:$VLLM_VERSION" "$clone"
    else
        echo "Pulls $prebuilt: tens of GB (an estimate, not measured)." >&2
        run docker pull "$prebuilt"
        local from=$'FROM '$prebuilt$'\nENTRYPOINT []'
        $dry_run && printf 'echo %q | ' "$from"
        echo "$from" | run docker buildx build --load --label "qwen-vl-grpo.stage1=$recipe" --tag "$image:$VLLM_VERSION" -
    fi
    if [ -n "$push" ]; then
        run docker tag "$image:$VLLM_VERSION" "$push:$VLLM_VERSION"
        run docker push "$push:$VLLM_VERSION"
    fi
}
