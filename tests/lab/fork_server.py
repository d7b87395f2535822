"""Starts vLLMs in a fifth of the time: it imports what vLLM imports once, and forks for each.

``fork_server.py SOCKET``, run with the Python of vLLM. Test runs that share it connect to the
socket and ask by lines of JSON, each of which is answered: the words of a server, its environment
and its log start one in a session of its own, whose process id is the answer; a process id alone
asks for its exit status, which is null as long as it runs. The servers of who disconnects end, and
all of them when this process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any, TextIO

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
    """Listen, import, and do what is asked for."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(sys.argv[1])
    listening.listen()
    for name in MODULES:
        # Another version of vLLM may not have it.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    clients: dict[socket.socket, Client] = {}
    while True:
        ready, _, _ = select.select([listening, *clients], [], [])
        for connection in ready:
            if connection is listening:
                accepted = listening.accept()[0]
                clients[accepted] = Client(accepted.makefile("rw"))
            elif asked := clients[connection].read():
                if clients[connection].answer(asked):
                    continue
                for inherited in (listening, *clients):
                    os.close(inherited.detach())
                serve(asked)
                return
            else:
                clients.pop(connection).end()
                connection.close()


class Client:
    """A test run, and the servers that were started for it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._ended: dict[int, int | None] = {}
        """Exit statuses by process id."""

    def read(self) -> Any:
        """What it asks for; None if it is gone."""
        try:
            line = self._stream.readline()
        except ConnectionError:
            return None
        return json.loads(line) if line else None

    def answer(self, asked: Any) -> bool:
        """Do what it asks for, and tell it what came of it; false in the server itself."""
        if isinstance(asked, int):
            found = self._exit_status(asked)
        elif found := os.fork():
            self._ended[found] = None
        else:
            return False
        with contextlib.suppress(ConnectionError):
            print(json.dumps(found), file=self._stream, flush=True)
        return True

    def end(self) -> None:
        """End what it has left."""
        for pid in self._ended:
            if self._exit_status(pid) is None:
                os.kill(pid, signal.SIGTERM)

    def _exit_status(self, pid: int) -> int | None:
        """The exit status of a server, negative for a signal; None while it runs."""
        if self._ended[pid] is None:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._ended[pid] = os.waitstatus_to_exitcode(status)
        return self._ended[pid]


def serve(asked: dict[str, Any]) -> None:
    """Be the command ``vllm`` with these words."""
    os.setsid()
    # Where the title is written is found by the environment, as it was.
    title = importlib.import_module("setproctitle")
    title.setproctitle(" ".join([sys.executable, *asked["command"]]))
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
    main()


if __name__ == "__main__":
    main()
