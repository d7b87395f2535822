"""vLLM is found behind whatever starts it, or the command is refused."""

from __future__ import annotations

import shlex

import pytest

from specwatch.errors import CannotStrip
from specwatch.stripping import strip

FLAGS = " --port 1 --spec-method ngram --seed 2"

STARTS = [
    "vllm serve M",
    "/opt/vllm/bin/vllm serve M",
    "A=b C='d e' vllm serve M",
    "python3.12 -u -X dev -m vllm.entrypoints.openai.api_server --model M",
    "/opt/bin/python -um vllm.entrypoints.cli.main serve M",
    "python -m vllm serve M",
    "python /opt/vllm/bin/vllm serve M",
    "env A=b vllm serve M",
    "env -i -u HOME --unset=X -C /srv A=b C=d /bin/vllm serve M",
    "env - vllm serve M",
    "exec -a name vllm serve M",
    "nohup vllm serve M",
    "numactl --cpunodebind=0 --membind 0 -l vllm serve M",
    "numactl -N 0 -m 0 -- vllm serve M",
    "taskset -c 0-3 vllm serve M",
    "taskset 0xff vllm serve M",
    "nice -n 5 vllm serve M",
    "nice -n-5 vllm serve M",
    "nice -10 ionice -c2 -n 0 vllm serve M",
    "chrt --rr 10 vllm serve M",
    "timeout -k 5 --signal=TERM 1h vllm serve M",
    "stdbuf -oL --error=0 vllm serve M",
    "setsid -fw vllm serve M",
    "sudo -u vllm -E A=b vllm serve M",
    "sudo -nu vllm -- env A=b nice vllm serve M",
    "runuser -u vllm -- vllm serve M",
    "uv run vllm serve M",
    "uv --directory /srv run --with vllm==0.11 -p 3.12 --no-sync -- vllm serve M",
    "uv run -m vllm.entrypoints.openai.api_server --model M",
    "uv run python -m vllm.entrypoints.openai.api_server --model M",
    "uv tool run vllm serve M",
    "uvx vllm@0.32.0 serve M",
    "uvx --from vllm==0.32 vllm serve M",
    "conda run --no-capture-output -n spec vllm serve M",
    "poetry run vllm serve M",
    "tini -g -- vllm serve M",
    "systemd-run --user --scope -p MemoryMax=9G --slice=x vllm serve M",
    "systemd-run -tGp A=b -E C=d --uid 5 numactl -m0 vllm serve M",
    "docker run vllm/vllm-openai --model M",
    "docker run vllm/vllm-openai:v0.11.0 M",
    "docker run registry:5000/vllm/cuda@sha256:1 serve M",
    "docker run --rm -itp 80:80 --gpus all --ipc=host -v /a:/b -eA=b --shm-size 1g"
    " --name vllm --ulimit memlock=-1 vllm/vllm-openai --model M",
    "docker --context x container run -d --entrypoint vllm image serve M",
    "docker run --entrypoint python3 image -m vllm.entrypoints.openai.api_server --model M",
    "docker run --entrypoint '' image env A=b vllm serve M",
    "podman run --replace --device nvidia.com/gpu=all --name=x image vllm serve M",
    "sudo nerdctl run --init my/image --model M",
]


def words(*texts: str) -> list[str]:
    return shlex.split(" ".join(texts))


@pytest.mark.parametrize("start", STARTS)
def test_everything_before_vllm_stays(start: str) -> None:
    stripped = strip(words(start, FLAGS))
    assert list(stripped.command) == words(start, "--port 1 --seed 2")
    assert stripped.removed == ("--spec-method", "ngram")
    assert strip(stripped.command).removed == ()


@pytest.mark.parametrize("start", STARTS)
def test_in_a_shell_too(start: str) -> None:
    for shell in (["sh", "-c"], ["nice", "bash", "-o", "pipefail", "-lc"]):
        found = strip([*shell, f"set -e; exec {start}{FLAGS} > log", "name", "argument"])
        text = f"set -e; exec {start} --port 1 --seed 2 > log"
        assert found.command == (*shell, text, "name", "argument")


def test_what_docker_is_told_is_not_vllms() -> None:
    line = "docker run -e --spec-method --name vllm -l serve vllm/vllm-openai --model M"
    assert strip(words(line)).removed == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "there is no `vllm serve`"),
        ("A=b", "there is no `vllm serve`"),
        ("vllm chat M", "does not serve"),
        ("ls -l", "how 'ls' starts vLLM is not known"),
        ("wrapper vllm serve M", "how 'wrapper' starts vLLM is not known"),
        ("env -S 'vllm serve M'", "'-S' does to env is not known"),
        ("sudo -i vllm serve M", "'-i' does to sudo is not known"),
        ("nice -n", "has no value"),
        ("nice -n 5", "nice starts nothing"),
        ("python start.py", "runs is not seen here"),
        ("python -c 'import vllm' serve", "runs is not seen here"),
        ("python -m mine serve M", "'mine' is not known"),
        ("bash start.sh vllm serve M", "a script of its own"),
        ("bash -c", "has no text"),
        ("uv pip install vllm", "give a command of `uv run`"),
        ("docker exec c vllm serve M", "give a command of `docker run`"),
        ("docker compose up", "change `command` there"),
        ("docker-compose up", "change `command` there"),
        ("docker run --mystery x vllm/vllm-openai M", "'--mystery' does to docker run"),
        ("docker run -it", "names no image"),
        ("docker run image start --spec-method ngram", "how 'start' starts vLLM"),
        ("docker run image", "there is no `vllm serve`"),
        ("kubectl exec pod -- vllm serve M", "change the command in its manifest"),
        ("fish -c 'vllm serve M'", "use sh -c"),
        ("ssh host vllm serve M", "run specwatch there"),
    ],
)
def test_what_cannot_be_followed_is_refused(line: str, why: str) -> None:
    with pytest.raises(CannotStrip, match=why.replace("(", r"\(")):
        strip(words(line))
