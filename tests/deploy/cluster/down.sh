#!/usr/bin/env bash
# Ends the cluster and leaves nothing: no process, container, mount, link or packet rule.
#
# Safe to call at any time, also when nothing runs. Processes are ended by the ids that `up.sh`
# wrote down, after a look that they are still what they were. The container engine stays.
set -uo pipefail
. "$(dirname "$0")/paths.sh"

[ -d "$STATE" ] || exit 0
began=$SECONDS

is_ours() { # PID: whether it was started by up.sh
    [ -r "/proc/$1/cmdline" ] && tr '\0' ' ' <"/proc/$1/cmdline" | grep -qF -e "$STATE" -e "$BIN/"
}

end() { # NAME
    local pid
    pid=$(cat "$STATE/pid/$1" 2>/dev/null) || return 0
    is_ours "$pid" || return 0
    kill "$pid" 2>/dev/null
    for _ in $(seq 50); do
        is_ours "$pid" || return 0
        sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null
}

# The kubelet first, so that it starts nothing again.
for name in kubelet names dns proxy scheduler controllers apiserver etcd; do end $name; done

docker ps -aq --filter label=io.kubernetes.pod.uid 2>/dev/null | xargs -r docker rm -f -v >/dev/null 2>&1
[ ! -x "$BIN/kube-proxy" ] || "$BIN/kube-proxy" --cleanup >/dev/null 2>&1
# What the proxy's own cleaning leaves: chains of the kubelet, of the pods' network and of tests.
for table in mangle filter nat; do
    iptables-save -t $table 2>/dev/null | sed -n 's/^-A \(.*-j \(KUBE\|CNI\|TEST\)-.*\)/\1/p' |
        while read -r rule; do eval "iptables -w -t $table -D $rule"; done
    for action in -F -X; do
        iptables-save -t $table 2>/dev/null | sed -n 's/^:\(\(KUBE\|CNI\|TEST\)-[^ ]*\) .*/\1/p' |
            while read -r chain; do iptables -w -t $table $action "$chain"; done
    done
done
iptables -w -D FORWARD -i $BRIDGE -o $BRIDGE -j ACCEPT 2>/dev/null
awk -v root="$STATE/" 'index($2, root) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount
ip -o link show master $BRIDGE 2>/dev/null | awk -F': |@' '{print $2}' | while read -r link; do
    ip link del "$link"
done
ip link del $BRIDGE 2>/dev/null
find /sys/fs/cgroup -depth -type d -path '/sys/fs/cgroup/*/kubepods*' -exec rmdir {} + 2>/dev/null
while read -r place; do rm -rf "${place:?}"; done <"$STATE/made"
rm -rf "$STATE"
say "down in $((SECONDS - began)) s"
