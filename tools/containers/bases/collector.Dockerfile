# Stands in for otel/opentelemetry-collector:0.115.1 where no image can be pulled: rotel, a collector
# that speaks OTLP too, told by the same file where to listen. What arrives it writes to its log.
FROM scratch AS wheels

FROM debian:bookworm-slim
COPY collector.sh /otelcol
COPY --from=wheels rotel-*.whl /unpacked/
RUN apt-get -o Acquire::Retries=5 update -qq \
    && apt-get -o Acquire::Retries=5 install -y -qq --no-install-recommends unzip libpython3.11 \
    && unzip -q /unpacked/*.whl rotel/rotel-agent -d /unpacked \
    && install /unpacked/rotel/rotel-agent /bin/rotel-agent && chmod 755 /otelcol \
    && rm -rf /unpacked /var/lib/apt/lists/* /var/cache/* /var/log/*
USER 10001
EXPOSE 4317 4318
ENTRYPOINT ["/otelcol"]
CMD ["--config=/etc/otelcol/config.yaml"]
