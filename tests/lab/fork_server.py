"""Starts vLLMs in a third of the time: it imports what vLLM imports once, and forks for each.

The tests run it with the Python of vLLM. What they ask for comes as lines of JSON from standard
input, with an answer to each on standard output: the words of a server, its environment and its log
start one in a session of its own, whose process id is the answer; a process id alone asks for its
exit status, which is null as long as it runs. It ends its servers when it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
from typing import Any

MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.openai",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.launchers.run_batch",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.openai.chat_completion.api_router",
    "vllm.entrypoints.openai.completion.api_router",
    "vllm.entrypoints.openai.responses.api_router",
    "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.generate.api_router",
    "vllm.entrypoints.generate.generative_scoring.api_router",
    "vllm.entrypoints.generate.structured_decisions.api_router",
    "vllm.entrypoints.scale_out.derender.api_router",
    "vllm.entrypoints.scale_out.render.api_router",
    "vllm.entrypoints.scale_out.token_in_token_out.api_router",
    "vllm.entrypoints.serve.instrumentator.metrics",
    "vllm.entrypoints.serve.lora.api_router",
    "vllm.entrypoints.serve.tokenize.api_router",
    "vllm.transformers_utils.chat_templates.registry",
    "vllm.compilation.backends",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models.llama",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "compressed_tensors.compressors.model_compressors",
    "model_hosting_container_standards.sagemaker",
    "pydantic.v1",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "uvloop",
)
"""What a server imports, but for plugins and the tap; it imports itself what is missing here."""
_END_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl."""


def main() -> None:
    """Import, say that it is done, and do what is asked for."""
    # What libraries print is not an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for name in MODULES:
        # Another version of vLLM may not have it.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    print("ready", file=answers)
    ended: dict[int, int] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            answer = ended_with(asked, ended)
        elif answer := os.fork():
            # An earlier one may have had the same id.
            ended.pop(answer, None)
        else:
            answers.close()
            serve(asked)
            return
        print(json.dumps(answer), file=answers)


def ended_with(pid: int, ended: dict[int, int]) -> int | None:
    """The exit status of a server, negative for a signal; None while it runs."""
    if pid not in ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return None
        ended[pid] = os.waitstatus_to_exitcode(status)
    return ended[pid]


def serve(asked: dict[str, Any]) -> None:
    """Be the command ``vllm`` with these words."""
    os.setsid()
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGTERM)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    sys.argv = asked["command"]
    main = importlib.import_module("vllm.entrypoints.cli.main").main
    title = importlib.import_module("setproctitle")
    title.setproctitle(" ".join([sys.executable, *sys.argv]))
    main()


if __name__ == "__main__":
    main()
