#!/usr/bin/env bash
# Serve the tiny target with a real CPU vLLM: serve_vllm.sh VENV MODELS [more vllm serve flags]
#
# Listens on 127.0.0.1:${PORT:-8000} and is ready when GET /health answers, after 10 to 30 s: its
# processes are forked, which spares them two thirds of it.
# float32, because some virtual CPUs announce bfloat16 instructions and then refuse them.
# One thread per process by default: the server has an engine beside its front end, and a test
# machine has two cores.
set -euo pipefail
venv=$1 models=$2
shift 2
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export VLLM_CPU_OMP_THREADS_BIND=${VLLM_CPU_OMP_THREADS_BIND:-nobind}
export VLLM_WORKER_MULTIPROC_METHOD=${VLLM_WORKER_MULTIPROC_METHOD:-fork}
exec "$venv/bin/vllm" serve "$models/target" --served-model-name tiny --host 127.0.0.1 \
    --port "${PORT:-8000}" --max-model-len 1024 --enforce-eager --dtype float32 "$@"
