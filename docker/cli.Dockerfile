# The command line in an image: keys, checks, drains and loading of models, run beside a deployment.
#   docker build -f docker/cli.Dockerfile -t headrace-cli:0.1.0 .
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
COPY docker/dependencies.py docker/assemble.py docker/make_secrets.py LICENSE NOTICE ./
COPY libs/contracts/pyproject.toml contracts.toml
COPY libs/kit/pyproject.toml kit.toml
COPY libs/transport/pyproject.toml transport.toml
COPY services/gateway/pyproject.toml gateway.toml
COPY services/engine/pyproject.toml engine.toml
COPY services/cli/pyproject.toml cli.toml
# What changes seldom comes first: a change of our own code installs nothing else again.
RUN --mount=from=wheels,target=/wheels \
    python3 dependencies.py ./*.toml >asked.txt \
    && /opt/tools/bin/pip --python /opt/headrace/bin/python install -q --no-compile \
        -c requirements/runtime.txt -r asked.txt
COPY libs libs
COPY services services
RUN PATH="/opt/tools/bin:$PATH" pip wheel -q --no-deps --no-build-isolation --wheel-dir /ours \
        ./libs/contracts ./libs/kit ./libs/transport \
        ./services/gateway ./services/engine ./services/cli \
    && /opt/tools/bin/pip --python /opt/headrace/bin/python install -q --no-compile --no-index \
        --no-deps /ours/*.whl \
    && install -D -t /opt/headrace/libexec make_secrets.py
ARG SOURCE_DATE_EPOCH=0
RUN PYTHONHASHSEED=0 /opt/tools/bin/python assemble.py /opt/headrace /rootfs \
        /var/lib/headrace/server /var/lib/headrace/keys /var/lib/headrace/models

FROM python:${PYTHON}-slim
COPY --from=build /rootfs/ /
ENV PATH=/opt/headrace/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:0
WORKDIR /opt/headrace
# It does one thing and ends: there is no health to ask for.
HEALTHCHECK NONE
ENTRYPOINT ["headrace"]
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE_DATE_EPOCH=0
LABEL org.opencontainers.image.title="Headrace command line" \
      org.opencontainers.image.description="Keys, checks, drains and models of a deployment" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="python:3.11-slim"
