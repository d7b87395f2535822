"""``vllm bench serve`` and NVIDIA's AIPerf, of the lab, as commands for the tiny target."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

OFFLINE = {"HF_HUB_OFFLINE": "1"}


def hub_with(tokenizer: Path, folder: Path) -> Path:
    """A cache of the Hugging Face hub, for programs that take no folder for a tokenizer.

    It is made in ``folder`` and has the tokenizer as ``lab/tiny``; returns ``HF_HOME``.
    """
    revision = "0" * 40
    model = folder / "hf/hub/models--lab--tiny"
    shutil.copytree(tokenizer, model / "snapshots" / revision)
    (model / "refs").mkdir()
    (model / "refs/main").write_text(revision)
    return folder / "hf"


def vllm_bench(
    vllm: Path, url: str, tokenizer: Path, *, requests: int, concurrency: int, temperature: float
) -> list[str]:
    """``vllm bench serve`` on chat completions of full length; the data set is yet to be named."""
    return [
        str(vllm / "bin/vllm"),
        "bench",
        "serve",
        "--backend",
        "openai-chat",
        "--endpoint",
        "/v1/chat/completions",
        "--base-url",
        url,
        "--model",
        "tiny",
        "--tokenizer",
        str(tokenizer),
        "--num-prompts",
        str(requests),
        "--max-concurrency",
        str(concurrency),
        "--temperature",
        f"{temperature:g}",
        "--ignore-eos",
        "--disable-tqdm",
    ]


def aiperf_profile(
    aiperf: Path, url: str, folder: Path, *, requests: int, concurrency: int, temperature: float
) -> list[str]:
    """``aiperf profile`` on streamed chat completions of full length; prompts are yet to be named.

    Needs ``HF_HOME`` of :func:`hub_with`; the results are put in ``folder``.
    """
    return [
        str(aiperf / "bin/aiperf"),
        "profile",
        "--model",
        "tiny",
        "--url",
        url,
        "--endpoint-type",
        "chat",
        "--streaming",
        "--tokenizer",
        "lab/tiny",
        "--use-server-token-count",
        "--extra-inputs",
        f"temperature:{temperature:g}",
        "--extra-inputs",
        "ignore_eos:true",
        "--request-count",
        str(requests),
        "--concurrency",
        str(concurrency),
        "--workers-max",
        "1",
        "--record-processors",
        "1",
        "--ui-type",
        "none",
        "--no-gpu-telemetry",
        "--no-server-metrics",
        "--artifact-dir",
        str(folder),
    ]


def run(command: Sequence[str], environment: Mapping[str, str], timeout: float = 900.0) -> str:
    """Run a command to its end; what it printed. Raises RuntimeError when it fails."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-4000:]}")
    return done.stdout
