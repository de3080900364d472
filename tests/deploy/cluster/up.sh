#!/usr/bin/env bash
# Starts a Kubernetes of one node on this machine: etcd, control plane, kubelet, proxy, name server.
#
# Everything listens on loopback, on a unix socket or on the pods' own bridge. Services of type
# NodePort are on 127.0.0.1 alone. Prints the path of the administrator's kubeconfig on standard
# output. `down.sh` ends all of it; it is also called here, for what an interrupted run left.
set -euo pipefail
. "$(dirname "$0")/paths.sh"

began=$SECONDS
[ -x "$BIN/kubelet" ] || "$HERE/build.sh"
for program in etcd dnsmasq conntrack socat openssl gcc kubectl /usr/lib/cni/bridge; do
    command -v $program >/dev/null || {
        say "there is no $program: run python3 tools/containers/prepare.py"
        exit 1
    }
done
docker version >/dev/null 2>&1 || {
    say "no container engine answers at $DOCKER_HOST: run python3 tools/containers/daemon.py up"
    exit 1
}
"$HERE/down.sh"
mkdir -p "$STATE"/{pki,log,pid,cni/conf,cni/cache,kubelet}
for place in $KUBELET_PLACES; do [ -e "$place" ] || echo "$place"; done >"$STATE/made"
cd "$STATE"
export KUBECONFIG=$STATE/pki/admin.conf

start() { # NAME COMMAND...: in the background, its log and its process id beside the others
    local name=$1
    shift
    setsid nohup "$@" >"log/$name.log" 2>&1 9>&- &
    echo $! >"pid/$name"
}

wait_for() { # WHAT COMMAND...: until it succeeds, for three minutes
    local what=$1 end=$((SECONDS + 180))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || {
            say "$what did not come up; see $STATE/log"
            exit 1
        }
        sleep 0.2
    done
}

# --- identities: one authority, one certificate a component
CURVE="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"

certificate() { # NAME SUBJECT [ALTERNATIVE NAMES]
    openssl req $CURVE -keyout "$1.key" -subj "$2" -out "$1.csr" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out "$1.crt" \
        -extfile <(
            echo extendedKeyUsage=serverAuth,clientAuth
            [ -z "${3:-}" ] || echo "subjectAltName=$3"
        ) 2>/dev/null
}

kubeconfig() { # NAME: of the certificate of that name
    cat >"$1.conf" <<Y
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:16443", certificate-authority: $PWD/ca.crt}}]
users: [{name: u, user: {client-certificate: $PWD/$1.crt, client-key: $PWD/$1.key}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
Y
}

(
    cd pki
    openssl req -x509 $CURVE -keyout ca.key -subj /CN=cluster-ca -days 30 \
        -out ca.crt 2>/dev/null
    certificate apiserver /CN=kube-apiserver \
        IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes.default.svc
    certificate admin /O=system:masters/CN=admin
    certificate controllers /CN=system:kube-controller-manager
    certificate scheduler /CN=system:kube-scheduler
    certificate kubelet /O=system:nodes/CN=system:node:localhost IP:127.0.0.1,DNS:localhost
    certificate proxy /CN=system:kube-proxy
    certificate apiserver-kubelet /O=system:masters/CN=apiserver-kubelet
    openssl ecparam -name prime256v1 -genkey -noout -out accounts.key
    openssl ec -in accounts.key -pubout -out accounts.pub 2>/dev/null
    for name in admin controllers scheduler kubelet proxy; do kubeconfig $name; done
)
pki=$STATE/pki

# --- control plane
etcd=http://127.0.0.1:12379
peers=http://127.0.0.1:12380
start etcd etcd --data-dir "$STATE/etcd" --listen-client-urls $etcd --advertise-client-urls $etcd \
    --listen-peer-urls $peers --initial-advertise-peer-urls $peers --initial-cluster default=$peers
start apiserver "$BIN/kube-apiserver" --etcd-servers=$etcd --bind-address=127.0.0.1 \
    --advertise-address=127.0.0.1 --secure-port=16443 --authorization-mode=Node,RBAC \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --client-ca-file="$pki/ca.crt" --service-cluster-ip-range=$SERVICE_NET --allow-privileged=true \
    --service-account-key-file="$pki/accounts.pub" \
    --service-account-signing-key-file="$pki/accounts.key" \
    --service-account-issuer=https://kubernetes.default.svc --endpoint-reconciler-type=none \
    --kubelet-client-certificate="$pki/apiserver-kubelet.crt" \
    --kubelet-client-key="$pki/apiserver-kubelet.key"
wait_for "the API server" kubectl get --raw /readyz
start controllers "$BIN/kube-controller-manager" --kubeconfig="$pki/controllers.conf" \
    --bind-address=127.0.0.1 --port=0 --secure-port=16257 --leader-elect=false \
    --service-account-private-key-file="$pki/accounts.key" --root-ca-file="$pki/ca.crt" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
    --use-service-account-credentials --allocate-node-cidrs --cluster-cidr=$POD_NET \
    --node-cidr-mask-size=24 --service-cluster-ip-range=$SERVICE_NET \
    --horizontal-pod-autoscaler-sync-period=2s \
    --horizontal-pod-autoscaler-initial-readiness-delay=2s \
    --horizontal-pod-autoscaler-cpu-initialization-period=5s
start scheduler "$BIN/kube-scheduler" --kubeconfig="$pki/scheduler.conf" \
    --bind-address=127.0.0.1 --port=0 --secure-port=16259 --leader-elect=false

# --- the pods' network, and names in it: there is no CoreDNS package, so dnsmasq is fed from the API
ip link add $BRIDGE type bridge
ip addr add $POD_GATEWAY/24 dev $BRIDGE
ip link set $BRIDGE up
# The container engine drops what it does not know; pods reach each other, and nothing else.
iptables -w -I FORWARD -i $BRIDGE -o $BRIDGE -j ACCEPT
cat >cni/conf/10-bridge.conf <<J
{"cniVersion": "0.3.1", "name": "pods", "type": "bridge", "bridge": "$BRIDGE", "isGateway": true,
 "ipMasq": true, "hairpinMode": true,
 "ipam": {"type": "host-local", "dataDir": "$STATE/cni/addresses",
          "ranges": [[{"subnet": "$POD_NET"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
J
: >names
echo "nameserver $POD_GATEWAY" >resolv.conf
start dns dnsmasq --keep-in-foreground --conf-file=/dev/null --no-hosts --no-resolv \
    --addn-hosts="$STATE/names" --listen-address=$POD_GATEWAY --bind-interfaces \
    --local=/cluster.local/ --pid-file= --local-ttl=1 --user=root
start names python3 "$HERE/names.py" --pki "$pki" --hosts "$STATE/names" --dnsmasq "$(cat pid/dns)"

# --- the node. Its pause image is forty lines of C less than a registry.
docker image inspect headrace-pause:1 >/dev/null 2>&1 || (
    cd "$(mktemp -d)"
    printf '%s\n' '#include <signal.h>' '#include <unistd.h>' 'static void end(int s) { _exit(0); }' \
        'int main() { signal(SIGINT, end); signal(SIGTERM, end); for (;;) pause(); }' >pause.c
    gcc -static -Os -s -w -o pause pause.c
    tar c pause | docker import -c 'ENTRYPOINT ["/pause"]' - headrace-pause:1 >/dev/null
    rm -r "$PWD"
)
cat >kubelet.yaml <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: 20250
readOnlyPort: 0
healthzBindAddress: 127.0.0.1
healthzPort: 20248
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [$POD_GATEWAY]
resolvConf: $STATE/resolv.conf
imageGCHighThresholdPercent: 100
syncFrequency: 10s
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $pki/kubelet.crt
tlsPrivateKeyFile: $pki/kubelet.key
evictionHard: {nodefs.available: "1%", imagefs.available: "1%", memory.available: 100Mi}
Y
start kubelet "$BIN/kubelet" --config="$STATE/kubelet.yaml" --kubeconfig="$pki/kubelet.conf" \
    --hostname-override=localhost --node-ip=$POD_GATEWAY --root-dir="$STATE/kubelet" \
    --cert-dir="$STATE/kubelet/pki" --container-runtime=docker --docker-endpoint="$DOCKER_HOST" \
    --pod-infra-container-image=headrace-pause:1 --network-plugin=cni \
    --cni-conf-dir="$STATE/cni/conf" --cni-cache-dir="$STATE/cni/cache" --cni-bin-dir=/usr/lib/cni
start proxy "$BIN/kube-proxy" --kubeconfig="$pki/proxy.conf" --proxy-mode=iptables \
    --cluster-cidr=$POD_NET --hostname-override=localhost --bind-address=127.0.0.1 \
    --nodeport-addresses=127.0.0.0/8 --healthz-bind-address=127.0.0.1:20256 \
    --metrics-bind-address=127.0.0.1:20249 --conntrack-max-per-core=0
wait_for "the node" sh -c "kubectl get nodes --no-headers | grep -qw Ready"
wait_for "the default service account" kubectl get serviceaccount default

touch "$STATE/up"
say "up in $((SECONDS - began)) s"
echo "$KUBECONFIG"
