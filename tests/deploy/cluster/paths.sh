# Sourced by the other scripts: where things lie, the same for all of them.
#
# CACHE is kept between runs and may be deleted at any time; STATE is one cluster's and is gone
# after `down.sh`. Neither lies in the tree. The container engine is the one that
# tools/containers/daemon.py starts.

CACHE=${HEADRACE_CI_CACHE:-/var/cache/headrace-ci}
RUN=${HEADRACE_CI_STATE:-/run/headrace-ci}
KUBERNETES=$CACHE/kubernetes
BIN=$KUBERNETES/bin
STATE=$RUN/cluster
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$CACHE/chart/bin:$CACHE/etcd:$PATH # kubectl and helm; etcd
export DOCKER_HOST=${DOCKER_HOST:-unix://$RUN/docker.sock}

BRIDGE=headrace0 # the pods' network; its address is also their name server
POD_NET=10.244.0.0/24
POD_GATEWAY=10.244.0.1
SERVICE_NET=10.96.0.0/16

# Where the kubelet writes besides its own folder; its source has these paths fixed.
KUBELET_PLACES="/var/log/pods /var/log/containers /var/lib/dockershim /var/lib/kubelet
    /usr/libexec/kubernetes"

say() { printf 'cluster: %s\n' "$*" >&2; }
