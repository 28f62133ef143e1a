# NVIDIA's client image, which holds perf_analyzer, with this project's clients. `make image`.
ARG RELEASE=24.10
FROM nvcr.io/nvidia/tritonserver:${RELEASE}-py3-sdk

# The project needs Python 3.11; that of the image is 3.10 up to release 24.10, and 3.12 after it. A virtual environment
# leaves the image's own tools alone.
# DL3008 wants versions: Ubuntu keeps only the newest build of a package, so a version here would soon not install.
# hadolint ignore=DL3008
RUN python=$(python3 -c "import sys; print('python3' if sys.version_info >= (3, 11) else 'python3.11')") \
    && apt-get update \
    && apt-get install --yes --no-install-recommends "$python" "$python-venv" \
    && rm -rf /var/lib/apt/lists/* \
    && "$python" -m venv /opt/triton-batching
ENV PATH=/opt/triton-batching/bin:$PATH

WORKDIR /workspace/triton-batching
COPY --chown=1000:1000 pyproject.toml requirements.lock README.md ./
COPY --chown=1000:1000 triton_batching/ triton_batching/
COPY --chown=1000:1000 export/ export/
COPY --chown=1000:1000 serve/ serve/
COPY --chown=1000:1000 clients/ clients/
COPY --chown=1000:1000 perf/ perf/
# Editable, because programs find their files beside their modules. Neither torch nor onnxruntime: the server has them.
RUN python -m pip install --no-cache-dir --constraint requirements.lock --editable ".[tools]"

# The server's user: shared memory that a client makes can be opened by its owner only.
USER 1000:1000
CMD ["python", "-m", "clients.examples.recognize", "--help"]
