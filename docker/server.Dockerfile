# NVIDIA's tritonserver with this repository's models. `make export`, then `make image`.
# `--build-arg RELEASE=26.08` takes another release (serve/RELEASES.md); only 24.10 was run.
ARG RELEASE=24.10
FROM nvcr.io/nvidia/tritonserver:${RELEASE}-py3

# Each 1/model.onnx comes from the build context: the image needs no torch and serves the very file that was proved.
# Owned by the user below, so that it can read them whatever the rights of the files were here.
COPY --chown=1000:1000 model_repository/ /models/

# The modules that the models share go beside each model.py. The picture models decode with Pillow, the newest for the
# image's Python 3.10.
COPY export/ /opt/vendor/export/
COPY serve/ /opt/vendor/serve/
RUN python3 /opt/vendor/serve/vendor.py /models \
    && python3 -m pip install --no-cache-dir pillow==12.2.0

# The backend of models whose requests are padded (`backend: "onnxruntime_padded"`), beside NVIDIA's C++ backend, and its
# onnxruntime, the newest for Python 3.10. For KIND_GPU: --build-arg ONNXRUNTIME=onnxruntime-gpu.
ARG ONNXRUNTIME=onnxruntime
RUN cp -r /opt/vendor/serve/backends/onnxruntime /opt/tritonserver/backends/onnxruntime_padded \
    && python3 -m pip install --no-cache-dir "${ONNXRUNTIME}==1.23.2"

# The image's own `triton-server`, as a number: Kubernetes cannot tell from a name that it is not root.
USER 1000:1000
EXPOSE 8000 8001 8002

# Ready means that every model named by the command is loaded. A large one on a cold disk takes a minute or two.
HEALTHCHECK --interval=5s --timeout=3s --start-period=180s --retries=3 \
    CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "http://localhost:8000/v2/health/ready"]

# The flags that hold for every model, and the secret of the admin APIs.
COPY --chown=1000:1000 docker/serve.sh /opt/serve.sh
ENTRYPOINT ["sh", "/opt/serve.sh"]
# What to serve; arguments of `docker run` take its place.
CMD ["--load-model=text_recognition", "--model-config-name=dynamic"]
