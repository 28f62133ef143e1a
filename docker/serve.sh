#!/bin/sh
# Starts tritonserver in the image. Its admin APIs want a secret in the header `triton-grpc-protocol-admin`, over HTTP and
# gRPC. If the environment has none, a random one is made that nobody knows.
set -eu
secret=${TRITON_ADMIN_SECRET:-$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')}
unset TRITON_ADMIN_SECRET
# Loading a model runs code; the others read and write files and memory.
apis=model-repository,shared-memory,trace,logging
# From 26.04 on the server refuses its clients' shared memory without a flag that older ones do not know. The secret
# guards it.
release=${NVIDIA_TRITON_SERVER_VERSION:-0}
if [ "$(printf '%s\n' 26.04 "$release" | sort -V | head -n 1)" = 26.04 ]; then
    set -- --allow-client-shm=true "$@"
fi
# NVIDIA's script checks the driver and then becomes the server, so that `docker stop` reaches it.
# No model loads by itself, and requests in flight get 10 s to end.
exec /opt/nvidia/nvidia_entrypoint.sh tritonserver --model-repository=/models --model-control-mode=explicit \
    --exit-timeout-secs=10 "--http-restricted-api=$apis:triton-grpc-protocol-admin=$secret" \
    "--grpc-restricted-protocol=$apis:admin=$secret" "$@"
