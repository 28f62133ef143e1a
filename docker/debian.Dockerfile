# The tritonserver that pip has, with this project's backend, on Debian: no image of NVIDIA's, no GPU. `docker/build.sh`.
ARG BASE=debian:bookworm-slim
# hadolint ignore=DL3006
FROM $BASE

# Triton's Python stub embeds libpython3.11.
# DL3008 wants versions: Debian keeps only the newest build of a package, so a version here would soon not install.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libpython3.11 python3.11 python3.11-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3.11 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH

WORKDIR /opt/triton-batching
# The largest part first, so that a changed source leaves its layer alone. pip may need the configuration and the
# certificates of the machine that builds; as secrets they get into no layer.
ARG PIP_CERT
COPY --chown=1000:1000 requirements.lock ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=certificates \
    python -m pip install --no-cache-dir --no-compile --constraint requirements.lock --no-deps nvidia-pytriton

COPY --chown=1000:1000 pyproject.toml README.md ./
COPY --chown=1000:1000 triton_batching/ triton_batching/
COPY --chown=1000:1000 export/ export/
COPY --chown=1000:1000 serve/ serve/
COPY --chown=1000:1000 clients/ clients/
COPY --chown=1000:1000 perf/ perf/
COPY --chown=1000:1000 model_repository/ model_repository/
# Editable, because programs find their files beside their modules. The modules that the models share go beside each
# model.py. What the server imports is compiled here, where it can be written.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=certificates \
    python -m pip install --no-cache-dir --constraint requirements.lock --editable ".[cpu]" \
    && python -m serve.vendor \
    && python -m compileall -q export model_repository serve triton_batching

COPY docker/serve-debian.sh /opt/serve.sh
USER 1000:1000
EXPOSE 8000 8001 8002
# The server's log and its other files go to /tmp.
WORKDIR /tmp
ENTRYPOINT ["sh", "/opt/serve.sh"]
# What to serve; arguments of `docker run` take its place.
CMD ["--model", "text_recognition", "--config-name", "dynamic"]
