#!/bin/sh
# Takes `--config=FILE` as the collector does, and gives rotel what it wants as flags.
set -eu
file=${1#--config=}
endpoint() { # PROTOCOL: where its receiver listens
    sed -n "s/^ *$1: {endpoint: \"\(.*\)\"}\$/\1/p" "$file"
}
exec rotel-agent start --otlp-grpc-endpoint "$(endpoint grpc)" --otlp-http-endpoint "$(endpoint http)" \
    --exporter blackhole --debug-log traces --debug-log metrics --debug-log-verbosity detailed
