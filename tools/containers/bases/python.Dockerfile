# Stands in for python:3.11-slim (target slim) and python:3.11 (target full) where no image can be
# pulled: Debian's own Python, on a local Debian.
FROM debian:bookworm-slim AS slim
RUN apt-get -o Acquire::Retries=5 update -qq \
    && apt-get -o Acquire::Retries=5 install -y -qq --no-install-recommends python3 python3-venv \
    && ln -s python3 /usr/bin/python \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /usr/share/doc/* /usr/share/man/*
CMD ["python3"]

FROM slim AS full
RUN apt-get -o Acquire::Retries=5 update -qq \
    && apt-get -o Acquire::Retries=5 install -y -qq --no-install-recommends g++ python3-dev \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /usr/share/doc/* /usr/share/man/*
