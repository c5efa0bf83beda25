#!/usr/bin/env bash
# A Docker Engine with BuildKit and buildx in a folder of its own, where nobody has one: engine.sh FOLDER, as root on Debian 12.
# The engine is Debian testing's docker.io, whose binaries run on Debian 12 as they are: Debian 12's own cannot lint a Dockerfile.
# It has no bridge and touches no firewall. Its process id is in FOLDER/dockerd.pid; nothing outside FOLDER is written but by apt.
set -euo pipefail
folder=$1
apt=$folder/apt
mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$folder/client/cli-plugins"
export DEBIAN_FRONTEND=noninteractive

(command -v runc && command -v tini && command -v mmdebstrap) >/dev/null || {
    apt-get update -qq
    apt-get install -qq --no-install-recommends runc tini mmdebstrap >/dev/null
}

# shellcheck disable=SC2016 # apt fills it in
mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -n 1)
cat >"$apt/sources.list" <<END
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no] $mirror forky main
END
cat >"$apt/apt.conf" <<END
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt";
END
APT_CONFIG=$apt/apt.conf apt-get update -qq
(cd "$apt/archives" && APT_CONFIG=$apt/apt.conf apt-get download -qq docker.io docker-cli docker-buildx containerd 2>/dev/null)
for package in "$apt"/archives/*.deb; do dpkg-deb --extract "$package" "$folder"; done
rm -rf "$apt"
ln -sf "$folder/usr/libexec/docker/cli-plugins/docker-buildx" "$folder/client/cli-plugins/"

# A hundred thousand small files are written and thrown away: in memory, where there is enough of it.
mkdir "$folder/images"
if [ "$(awk '/MemAvailable/ {print int($2 / 1000000)}' /proc/meminfo)" -ge 12 ]; then
    mount -t tmpfs -o size=7g tmpfs "$folder/images" || true
fi

export PATH=$folder/usr/bin:$folder/usr/sbin:$PATH
setsid dockerd --host "unix://$folder/docker.sock" --data-root "$folder/images" --exec-root "$folder/run" \
    --pidfile "$folder/dockerd.pid" --init-path "$(command -v tini)" --bridge=none --iptables=false --ip6tables=false \
    >"$folder/dockerd.log" 2>&1 </dev/null &
for _ in $(seq 60); do
    DOCKER_CONFIG=$folder/client docker --host "unix://$folder/docker.sock" info >/dev/null 2>&1 && exit 0
    sleep 0.5
done
tail -n 3 "$folder/dockerd.log" >&2
exit 1
