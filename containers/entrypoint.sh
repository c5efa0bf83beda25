#!/bin/sh
# Become the owner of /workspace, keep the groups that open the GPU, say in one line what this machine can do, and hand on.
# With --user nothing is changed. Where the owner is root (rootless docker, a checkout of root), root stays.
set -eu

say() { echo "entrypoint: $*" >&2; }

devices=$(find /dev/kfd /dev/dri /dev/nvidiactl -type c 2>/dev/null || true)
owner=$(stat -c %u /workspace)

if [ "$(id -u)" = 0 ] && [ "$owner" != 0 ]; then
    groups=$(id -G)
    for device in $devices; do groups="$groups $(stat -c %g "$device")"; done
    groups=$(echo "$groups" | tr ' ' '\n' | grep -vx 0 | sort -un | paste -sd, -)
    group=$(stat -c %g /workspace)
    exec setpriv --reuid "$owner" --regid "$group" --groups "${groups:-$group}" --inh-caps=-all "$0" "$@"
fi

for device in $devices; do
    if [ ! -w "$device" ]; then
        say "$device belongs to group $(stat -c %g "$device") and user $(id -u) is not in it; add --group-add $(stat -c %g "$device")"
    fi
done
if [ ! -w /cache ]; then
    say "/cache cannot be written by user $(id -u); mount a volume there that it may write to"
fi

# A user without a line in /etc/passwd has neither a home nor a name, and torch asks for both.
HOME=/cache/home-$(id -u)
export HOME USER="${USER:-grpo}" LOGNAME="${LOGNAME:-grpo}"
mkdir -p "$HOME" 2>/dev/null || export HOME=/tmp

if [ -d /workspace/src/qwen_vl_grpo ]; then
    say "$(grpo doctor --line 2>&1 || true)"
else
    say "/workspace holds no src/qwen_vl_grpo; mount a checkout of this project there, or nothing at all"
fi
exec "$@"
