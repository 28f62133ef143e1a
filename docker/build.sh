#!/bin/sh
# Builds docker/debian.Dockerfile as localhost/triton-batching-debian:VERSION, from anywhere:
#   docker/build.sh
# With a Docker engine on top of debian:bookworm-slim. Else with buildah, as root, on a Debian that mmdebstrap makes from
# packages, so no registry of images is needed: apt-get install buildah mmdebstrap
#   BASE=IMAGE    another image to start from
#   STORE=FOLDER  buildah even where Docker is, with its images and layers in this folder (an absolute path)
# Of this machine, pip may read /etc/pip.conf and the certificates. Neither gets into the image.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

set -- --file docker/debian.Dockerfile --tag "localhost/triton-batching-debian:$version"
if [ -f /etc/pip.conf ]; then
    set -- "$@" --secret id=pip.conf,src=/etc/pip.conf
fi
if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
    set -- "$@" --secret id=certificates,src=/etc/ssl/certs/ca-certificates.crt \
        --build-arg PIP_CERT=/run/secrets/certificates
fi

if [ -z "${STORE:-}" ] && docker info > /dev/null 2>&1; then
    exec docker build "$@" --build-arg "BASE=${BASE:-debian:bookworm-slim}" .
fi
if ! command -v buildah > /dev/null; then
    echo "docker/build.sh: neither a Docker engine nor buildah is here. Debian, Ubuntu: apt-get install buildah mmdebstrap" >&2
    exit 2
fi

buildah() {
    command buildah ${STORE:+--root "$STORE/storage" --runroot "$STORE/run"} "$@"
}

base=${BASE:-localhost/debian:bookworm}
if [ -z "${BASE:-}" ] && ! buildah inspect --type image "$base" > /dev/null 2>&1; then
    if ! command -v mmdebstrap > /dev/null; then
        echo "docker/build.sh: mmdebstrap is not here to make a Debian. apt-get install mmdebstrap, or BASE=IMAGE" >&2
        exit 2
    fi
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    trap 'exit 130' INT TERM
    mmdebstrap --variant=minbase --include=ca-certificates bookworm "$folder/debian.tar"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$folder/debian.tar" /
    buildah commit --quiet --rm "$container" "$base"
fi
# Without a virtual network, which needs more rights than a container of CI has.
buildah build --isolation chroot --network host --layers "$@" --build-arg "BASE=$base" .
