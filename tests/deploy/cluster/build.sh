#!/usr/bin/env bash
# Builds a Kubernetes control plane, kubelet and proxy into the cache, once.
#
# Debian's source package holds Kubernetes 1.20.2 with everything it depends on, and Debian's own
# compiler builds it. One dependency is older than that compiler: reflect2 up to 1.0.1 walks maps by
# a layout that Go changed in 1.18, which ends the API server at the first definition of a custom
# kind, so Debian's package of 1.0.2 takes its place. Nothing else is fetched. About seven minutes of
# processor time and 400 MB that stay; a second call returns at once. The mirror is the one that apt
# is configured with.
set -euo pipefail
. "$(dirname "$0")/paths.sh"

VERSION=1.20.2
PROGRAMS="kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy"
BUILT=$BIN/version-$VERSION-reflect2
REFLECT2=golang-github-modern-go-reflect2-dev

[ ! -f "$BUILT" ] || exit 0
began=$SECONDS
mkdir -p "$BIN"
exec 9>"$KUBERNETES/lock"
flock 9 # two callers: the second waits and finds the work done
[ ! -f "$BUILT" ] || exit 0

command -v go >/dev/null && command -v gcc >/dev/null || {
    say "there is no Go compiler: run python3 tools/containers/prepare.py"
    exit 1
}

again() { # COMMAND...: what asks a mirror, tried again when it fails
    local pause
    for pause in 5 20 60; do
        "$@" && return
        say "$1 failed; once more in $pause s"
        sleep $pause
    done
    "$@"
}

# A private apt configuration: the machine's own has no deb-src line, and is not to be changed.
apt=$KUBERNETES/apt
mkdir -p "$apt"/etc/apt/{apt.conf.d,preferences.d,sources.list.d} \
    "$apt"/var/lib/{apt/lists/partial,dpkg} "$apt"/var/cache/apt/archives/partial
: >"$apt/var/lib/dpkg/status"
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep '/debian$' | head -1)
for kind in deb deb-src; do
    echo "$kind [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main"
done >"$apt/etc/apt/sources.list"
printf 'Dir "%s";\nDir::State::status "%s/var/lib/dpkg/status";\nAPT::Sandbox::User "root";\n' \
    "$apt" "$apt" >"$apt/apt.conf"

cd "$KUBERNETES"
say "fetching the source package"
export APT_CONFIG=$apt/apt.conf
again apt-get update -qq
again apt-get source -qq --download-only kubernetes >/dev/null
again apt-get download -qq $REFLECT2 >/dev/null
unset APT_CONFIG
source=$KUBERNETES/kubernetes-$VERSION
rm -rf "$source"
tar xf kubernetes_*"$VERSION".orig.tar.*
rm -rf reflect2
dpkg -x ${REFLECT2}_*.deb reflect2
vendored=$source/vendor/github.com/modern-go/reflect2
rm -r "$vendored"
mv reflect2/usr/share/gocode/src/github.com/modern-go/reflect2 "$vendored"

# The source is laid out for a GOPATH; it vendors what it needs.
export GO111MODULE=off GOPATH=$KUBERNETES/gopath GOCACHE=$KUBERNETES/gocache GOFLAGS=
mkdir -p "$GOPATH/src/k8s.io"
ln -sfn "$source" "$GOPATH/src/k8s.io/kubernetes"
cd "$GOPATH/src/k8s.io/kubernetes"

# The one file that the source package leaves out, because it is generated.
say "generating the API's description"
go build -o "$BIN/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
inputs=$(grep -rl --include='*.go' -E '^\s*//\s*\+k8s:openapi-gen=' pkg staging/src/k8s.io |
    grep -vE '_test.go|/code-generator/|zz_generated|examples|sample-' | xargs -n1 dirname | sort -u |
    sed -E 's#^staging/src/#k8s.io/kubernetes/vendor/#; s#^pkg/#k8s.io/kubernetes/pkg/#' |
    paste -sd,)
"$BIN/openapi-gen" --input-dirs "$inputs" --output-base "$GOPATH/src" \
    --output-package k8s.io/kubernetes/pkg/generated/openapi \
    --output-file-base zz_generated.openapi \
    --go-header-file hack/boilerplate/boilerplate.generatego.txt -r "$KUBERNETES/violations.txt"

# A client asks the server's version; without these it would be an unreadable one.
flags="-s -w"
for package in component-base/version client-go/pkg/version; do
    for pair in gitVersion=v$VERSION gitMajor=1 gitMinor=20 gitTreeState=clean; do
        flags="$flags -X k8s.io/kubernetes/vendor/k8s.io/$package.$pair"
    done
done
# All in one, so that one is linked while others compile.
say "building $PROGRAMS"
go build -ldflags "$flags" -o "$BIN/" $(printf 'k8s.io/kubernetes/cmd/%s ' $PROGRAMS)

rm -rf "$GOCACHE" "$source" "$GOPATH" "$apt" "$KUBERNETES"/kubernetes_* "$KUBERNETES"/reflect2 \
    "$KUBERNETES"/${REFLECT2}_*.deb "$KUBERNETES/violations.txt" "$BIN/version-$VERSION" \
    "$BIN/openapi-gen"
touch "$BUILT"
say "built Kubernetes $VERSION in $((SECONDS - began)) s"
