# Stands in for valkey/valkey:8.0 where no image can be pulled: Debian's package, with the user, the
# folder and the programs that the real one has.
FROM debian:bookworm-slim
ARG MIRROR
RUN echo "deb $MIRROR bookworm-backports main" >/etc/apt/sources.list.d/backports.list \
    && apt-get -o Acquire::Retries=5 update -qq \
    && groupadd --system --gid 999 valkey \
    && useradd --system --uid 999 --gid valkey valkey \
    && apt-get -o Acquire::Retries=5 install -y -qq --no-install-recommends -t bookworm-backports valkey-server \
    && install -d -o valkey -g valkey /data && rm -r /etc/valkey \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /usr/share/doc/* /usr/share/man/*
VOLUME /data
WORKDIR /data
EXPOSE 6379
CMD ["valkey-server"]
