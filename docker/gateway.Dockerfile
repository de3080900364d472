# The gateway's image. From the repository's root:
#   docker build -f docker/gateway.Dockerfile -t headrace-gateway:0.1.0 .
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS build
WORKDIR /build
COPY requirements requirements
RUN python -m venv /opt/headrace \
    && pip install --no-cache-dir -c requirements/dev.txt build hatchling
COPY libs libs
COPY services/gateway services/gateway
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels \
        ./libs/contracts ./libs/kit ./libs/transport ./services/gateway \
    && pip --python /opt/headrace/bin/python install --no-cache-dir \
        -c requirements/runtime.txt --find-links /wheels headrace-gateway

FROM python:${PYTHON}-slim
COPY LICENSE NOTICE /usr/share/doc/headrace/
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HEADRACE_GATEWAY_HTTP_HOST=0.0.0.0 \
    HEADRACE_GATEWAY_GRPC_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8000 9000
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health/ready', timeout=2)"]
ENTRYPOINT ["headrace-gateway"]
