# Stands in for prom/prometheus:v2.53.3 where no image can be pulled: Debian's Prometheus, an older
# one, with the user, the folder and the command that the real image has.
FROM debian:bookworm-slim
WORKDIR /unpacked
RUN apt-get -o Acquire::Retries=5 update -qq \
    && apt-get -o Acquire::Retries=5 download -qq prometheus \
    && dpkg -x ./*.deb . \
    && mv usr/bin/prometheus usr/bin/promtool /bin/ \
    && install -d -o nobody -g nogroup /prometheus \
    && rm -rf /unpacked/* /var/lib/apt/lists/* /var/cache/* /var/log/*
USER 65534
VOLUME /prometheus
WORKDIR /prometheus
EXPOSE 9090
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
