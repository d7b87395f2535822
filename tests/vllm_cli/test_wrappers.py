"""vLLM's words are found behind whatever starts it, or the command is refused."""

from __future__ import annotations

import shlex

import pytest

from specwatch.errors import CannotStrip
from specwatch.vllm_cli import strip

FLAGS = " --port 1 --spec-method ngram --seed 2"

STARTS = [
    "vllm serve M",
    "A=b C='d e' /opt/vllm/bin/vllm serve M",
    "python3.12 -u -X dev -m vllm.entrypoints.openai.api_server --model M",
    "/opt/bin/python -um vllm.entrypoints.cli.main serve M",
    "python -m vllm serve M",
    "env -i -u HOME --unset=X -C /srv A=b C=/bin/sh /bin/vllm serve M",
    "exec -a name vllm serve M",
    "numactl --cpunodebind=0 --membind 0 -l -- vllm serve M",
    "nice -10 taskset -c 0-3 vllm serve M",
    "sudo -nu vllm -- env A=b nice vllm serve M",
    "uv run -m vllm.entrypoints.openai.api_server --model M",
    "uvx --from vllm==0.32 vllm@0.32.0 serve M",
    "conda run --no-capture-output -n spec vllm serve M",
    "systemd-run -tGp A=b -E C=d --uid 5 numactl -m0 vllm serve M",
    "docker exec -it c vllm serve M",
    "docker run vllm/vllm-openai --model M",
    "docker run vllm/vllm-openai:v0.11.0 M",
    "docker run registry:5000/vllm/cuda@sha256:1 serve M",
    "docker run --rm -itp 80:80 --gpus all --ipc=host -v /a:/b -eA=b --shm-size 1g"
    " --name vllm --ulimit memlock=-1 --mystery=x vllm/vllm-openai --model M",
    "docker container run -d --entrypoint vllm image serve M",
    "docker run --entrypoint python3 image -m vllm.entrypoints.openai.api_server --model M",
    "docker run --entrypoint '' image env A=b vllm serve M",
    "podman run --replace --device nvidia.com/gpu=all --name=x image vllm serve M",
    "sudo nerdctl run --init my/image --model M",
    "docker --context gpu1 -H tcp://h:1 run vllm/vllm-openai --model M",
    "nerdctl --namespace k8s.io container run vllm/vllm-openai --model M",
    "docker --debug --log-level debug run vllm/vllm-openai --model M",
    "docker --tls run vllm/vllm-openai --model M",
    "podman run --secret hf,type=env --health-cmd 'curl -f http://h/health' --annotation k=v"
    " --sysctl k=v vllm/vllm-openai --model M",
    "docker run --other x=y --mystery x vllm/vllm-openai --model M",
    "docker run --mystery vllm/vllm-openai --model M",
]


def words(*texts: str) -> list[str]:
    return shlex.split(" ".join(texts))


@pytest.mark.parametrize("start", STARTS)
def test_everything_before_vllm_stays(start: str) -> None:
    stripped = strip(words(start, FLAGS))
    assert list(stripped.command) == words(start, "--port 1 --seed 2")
    assert stripped.removed == ("--spec-method", "ngram")
    assert strip(stripped.command).removed == ()


@pytest.mark.parametrize(
    "shell",
    [
        ["sh", "-c"],
        ["nice", "/bin/bash", "-lc"],
        ["docker", "run", "--entrypoint", "bash", "image", "-c"],
        ["docker", "run", "image", "sh", "-c"],
        ["bash", "-o", "pipefail", "-c"],
        ["bash", "--login", "-euo", "pipefail", "-c"],
        ["bash", "-ce"],
    ],
)
def test_vllm_is_found_behind_a_shell(shell: list[str]) -> None:
    for start in STARTS:
        stripped = strip([*shell, f"exec {start}{FLAGS}", "name", "argument"])
        assert stripped.command == (*shell, f"exec {start} --port 1 --seed 2", "name", "argument")


def test_options_of_docker_are_not_those_of_vllm() -> None:
    line = "docker run -e --spec-method --name vllm -l serve vllm/vllm-openai --model M"
    assert strip(words(line)).removed == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "there is no `vllm serve`"),
        ("A=b", "there is no `vllm serve`"),
        ("vllm chat M", "there is no `vllm serve`"),
        ("python -m vllm bench", "there is no `vllm serve`"),
        ("python start.py", "there is no `vllm serve`"),
        ("docker compose up", "there is no `vllm serve`"),
        ("docker run image start --spec-method ngram", "there is no `vllm serve`"),
        ("docker run vllm/vllm-openai python start.py", "there is no `vllm serve`"),
        ("'vllm serve M'", "give the plain command"),
        ("env -S 'vllm serve M'", "give the plain command"),
        ("fish -c 'vllm serve M'", "give the plain command"),
        ("bash start.sh vllm serve M", "give the plain command that it runs"),
        ("bash -o pipefail start.sh", "give the plain command that it runs"),
        ("bash --rcfile x -c 'vllm serve M'", "give the plain command that it runs"),
        ("bash -c", "give the plain command that it runs"),
        ("docker run -it", "has no image"),
        ("docker run --mystery x my/image M", "--mystery of docker run takes a value"),
        ("docker run -Z x my/image M", "-Z of docker run takes a value"),
        ("docker --context gpu1 ps", "there is no `vllm serve`"),
        ("docker run --gpus all text-generation-inference --speculate 3", "what the image"),
        ("docker run sglang:v0.5 --model-path M --speculative-algorithm EAGLE", "what the image"),
        ("docker run -e SPECULATIVE_CONFIG={} runpod/worker-v1-vllm:v2", "what the image"),
    ],
)
def test_commands_that_cannot_be_read_are_refused(line: str, why: str) -> None:
    with pytest.raises(CannotStrip, match=why):
        strip(words(line))
