# The gateway's image. From the repository's root:
#   docker build -f docker/gateway.Dockerfile -t headrace-gateway:0.1.0 .
# Without a network: `--build-context wheels=FOLDER --build-arg PIP_NO_INDEX=1 --network none`, with
# every wheel of requirements/{images,runtime}.txt in FOLDER. Pip's own variables choose an index.
ARG PYTHON=3.11
FROM scratch AS wheels

FROM python:${PYTHON} AS build
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_NO_INDEX
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_FIND_LINKS=/wheels
WORKDIR /build
COPY requirements requirements
RUN --mount=from=wheels,target=/wheels \
    python3 -m venv --without-pip /opt/headrace \
    && python3 -m venv /opt/tools \
    && /opt/tools/bin/pip install -q -r requirements/images.txt
COPY docker/dependencies.py docker/assemble.py docker/health.py LICENSE NOTICE ./
COPY libs/contracts/pyproject.toml contracts.toml
COPY libs/kit/pyproject.toml kit.toml
COPY libs/transport/pyproject.toml transport.toml
COPY services/gateway/pyproject.toml gateway.toml
# What changes seldom comes first: a change of our own code installs nothing else again.
RUN --mount=from=wheels,target=/wheels \
    python3 dependencies.py ./*.toml >asked.txt \
    && /opt/tools/bin/pip --python /opt/headrace/bin/python install -q --no-compile \
        -c requirements/runtime.txt -r asked.txt
COPY libs libs
COPY services/gateway services/gateway
RUN PATH="/opt/tools/bin:$PATH" pip wheel -q --no-deps --no-build-isolation --wheel-dir /ours \
        ./libs/contracts ./libs/kit ./libs/transport ./services/gateway \
    && /opt/tools/bin/pip --python /opt/headrace/bin/python install -q --no-compile --no-index \
        --no-deps /ours/*.whl \
    && install -D -t /opt/headrace/libexec health.py
ARG SOURCE_DATE_EPOCH=0
RUN PYTHONHASHSEED=0 /opt/tools/bin/python assemble.py /opt/headrace /rootfs

FROM python:${PYTHON}-slim
COPY --from=build /rootfs/ /
ENV PATH=/opt/headrace/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HEADRACE_GATEWAY_HTTP_HOST=0.0.0.0 \
    HEADRACE_GATEWAY_GRPC_HOST=0.0.0.0
USER 10001:0
WORKDIR /opt/headrace
EXPOSE 8000 9000
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s \
    CMD ["python3", "-I", "-S", "/opt/headrace/libexec/health.py", "8000"]
ENTRYPOINT ["headrace-gateway"]
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE_DATE_EPOCH=0
LABEL org.opencontainers.image.title="Headrace gateway" \
      org.opencontainers.image.description="OpenAI-compatible HTTP and gRPC in front of Redis streams" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="python:3.11-slim"
