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
# The largest part first, so that a changed source leaves its layer alone. Of the machine that builds, pip may need the
# index and the certificates; as secrets they get into no layer.
COPY requirements.lock ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/etc/ssl/certs/ca-certificates.crt \
    python -m pip install --no-cache-dir --no-compile --constraint requirements.lock --no-deps nvidia-pytriton

COPY pyproject.toml README.md ./
COPY triton_batching/ triton_batching/
COPY export/ export/
COPY serve/ serve/
COPY clients/ clients/
COPY perf/ perf/
COPY model_repository/ model_repository/
# Editable, because programs find their files beside their modules. The modules that the models share go beside each
# model.py. All of it can be read by the user below, whatever the rights of the files were here.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/etc/ssl/certs/ca-certificates.crt \
    python -m pip install --no-cache-dir --constraint requirements.lock --editable ".[cpu]" \
    && python -m serve.vendor \
    && python -m compileall -q export model_repository serve triton_batching \
    && chmod -R a+rX .

COPY docker/serve-debian.sh /opt/serve.sh
USER 1000:1000
EXPOSE 8000 8001 8002
# The server's log and its other files go to /tmp.
WORKDIR /tmp
ENTRYPOINT ["sh", "/opt/serve.sh"]
# What to serve; arguments of `docker run` take its place.
CMD ["--model", "text_recognition", "--config-name", "dynamic"]
