"""The lab as fixtures: a real vLLM, tiny models, a machine with a real systemd, a real Kubernetes.

Where something is not installed, tests that need it are skipped with the reason; in CI they fail.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.e2e import processes, tap_asks
from tests.e2e.groups import WORK, share_servers
from tests.e2e.switching import K, Switched, prepare
from tests.lab import kubernetes_cluster as clusters
from tests.lab import llama_server
from tests.lab import systemd_machine as machines
from tests.lab import vllm_install as lab
from tests.lab.kubernetes_cluster import KubernetesCluster
from tests.lab.systemd_machine import SystemdMachine
from tests.lab.vllm_server import FORKS, ForkServer, VllmServer, speculation_flags
from tests.lab.vllm_server import fork_server as fork_server_process
from tests.plugins.no_skips import in_ci

StartVllm = Callable[..., VllmServer]
StartSwitched = Callable[..., Switched]
SharedVllm = Callable[[str], VllmServer]

SHARED = {
    "plain_server": None,
    "good_server": "draft-good",
    "bad_server": "draft-bad",
    "tapped_server": "draft-good",
    "keyed_server": "draft-good",
}
"""Servers that files use one after another, for a start takes long: fixtures, and their drafts.

The tapped one has the tap; the keyed one has none, but a key and tools, for comparisons.
"""
SEGMENTS = {"SPECWATCH_TAP_SEGMENTS": "prompt_length,output"}
"""What the tapped one counts beside temperatures."""
_running: dict[str, VllmServer] = {}
_servers: list[VllmServer] = []
_clusters: list[KubernetesCluster] = []
"""The one that files of a group share."""
_SHOWN = 8000
"""Characters of a log that are shown with a failure, at most."""


def unavailable(reason: str) -> NoReturn:
    """Skip with the reason; in CI, fail with it."""
    if in_ci():
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _installed(install: Callable[[], Path], missing: str) -> Path:
    """Install something that is missing, if that is wanted; else skip and say so."""
    if not in_ci() and os.environ.get("SPECWATCH_E2E_INSTALL") != "1":
        unavailable(missing)
    try:
        return install()
    except subprocess.CalledProcessError as error:
        pytest.fail(f"it could not be installed: {error}", pytrace=False)


@pytest.fixture(scope="session")
def vllm_install() -> Path:
    """The virtual environment of a real CPU vLLM; ``bin/vllm`` and ``bin/python`` are in it."""
    if lab.is_installed():
        return lab.vllm_folder()
    return _installed(
        lab.install, f"no vLLM in {lab.vllm_folder()}: 'make lab' installs it (3.4 GB)"
    )


@pytest.fixture(scope="session")
def aiperf(vllm_install: Path) -> Path:
    """The virtual environment of NVIDIA's AIPerf; ``bin/aiperf`` is in it."""
    if lab.has_aiperf():
        return lab.aiperf_folder()
    return _installed(
        lambda: lab.install_aiperf(vllm_install),
        f"no AIPerf in {lab.aiperf_folder()}: 'make lab' installs it (1.2 GB)",
    )


@pytest.fixture(scope="session")
def tap(vllm_install: Path) -> tuple[str, ...]:
    """The flags that load the tap; the tap is installed next to vLLM, as users do."""
    lab.add_tap(vllm_install)
    return ("--middleware", "specwatch_tap.Tap")


@pytest.fixture(scope="session")
def tiny_models(vllm_install: Path) -> Path:
    """The folder with the checkpoints ``target``, ``draft-good`` and ``draft-bad``."""
    return lab.tiny_models(vllm_install)


@pytest.fixture(scope="session")
def llama_install() -> Path:
    """The folder of a real ``llama-server``."""
    if llama_server.is_built():
        return llama_server.llama_folder()
    missing = f"no llama-server in {llama_server.llama_folder()}: 'make lab' builds it (20 MB)"
    return _installed(llama_server.build, missing)


@pytest.fixture(scope="session")
def tiny_ggufs(tiny_models: Path) -> Path:
    """The folder with ``target.gguf``, ``draft-good.gguf`` and ``draft-bad.gguf``."""
    return llama_server.tiny_ggufs(tiny_models)


@pytest.fixture(scope="session")
def fork_server(
    vllm_install: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForkServer]:
    """Starts servers without importing everything anew for each: one process for all of a run."""
    with contextlib.ExitStack() as stack:
        shared = os.environ.get(FORKS)
        own = (vllm_install, tmp_path_factory.mktemp("forks"))
        path = shared or str(stack.enter_context(fork_server_process(*own)))
        yield stack.enter_context(contextlib.closing(ForkServer(path)))


@pytest.fixture(scope="session")
def start_vllm(
    vllm_install: Path,
    tiny_models: Path,
    fork_server: ForkServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[StartVllm]:
    """``start_vllm(*flags, speculation, k, wait, models, environment)``: a server of the target.

    ``speculation`` is ``draft-good``, ``draft-bad``, ``ngram`` or None, with ``k`` draft tokens and
    per-request records. With ``wait`` it answers when the call returns. Tests should
    stop it (``with start_vllm() as server``), since servers share few cores; those left are
    stopped at the end of the session. ``models`` is the folder with the checkpoints. One that is
    not ``forked`` imports everything itself, with its own environment.
    """
    logs = tmp_path_factory.mktemp("vllm")
    stopping = contextlib.ExitStack()

    def start(
        *flags: str,
        speculation: str | None = None,
        k: int = 4,
        wait: bool = True,
        models: Path = tiny_models,
        environment: Mapping[str, str] | None = None,
        forked: bool = True,
    ) -> VllmServer:
        log = logs / f"vllm-{len(_servers)}.log"
        server = VllmServer(
            vllm_install,
            models,
            log,
            *flags,
            speculation=speculation,
            k=k,
            environment=environment,
            forks=fork_server if forked else None,
        )
        _servers.append(server)
        WORK.append(server.processor_seconds)
        stopping.callback(server.stop)
        server.start()
        if wait:
            try:
                server.wait_healthy()
            except BaseException:
                server.stop()
                raise
        return server

    with stopping:
        yield start


@pytest.fixture(scope="session")
def start_switched(
    start_vllm: StartVllm,
    tap: tuple[str, ...],
    tiny_models: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> StartSwitched:
    """``start_switched(draft, *flags)``: a server with the switch, as ``tap flags --switch`` prints
    it."""

    def start(draft: str, *flags: str) -> Switched:
        folder = tmp_path_factory.mktemp("switched")
        command, environment = prepare(folder, speculation_flags(tiny_models, draft, K))
        server = start_vllm(*command, *flags, environment=environment)
        return Switched(server, folder / "switch")

    return start


@pytest.fixture(scope="session")
def shared_vllm(start_vllm: StartVllm, request: pytest.FixtureRequest) -> SharedVllm:
    """``shared_vllm(name)`` is one of :data:`SHARED`; it may not answer yet.

    It is started if it does not run, keeps its counters from file to file of a group, and is
    stopped after the last.
    """

    def flags_of(name: str) -> tuple[str, ...]:
        if name == "tapped_server":
            found: tuple[str, ...] = request.getfixturevalue("tap")
            return found
        return tap_asks.FLAGS if name == "keyed_server" else ()

    def get(name: str) -> VllmServer:
        if name not in _running:
            flags = flags_of(name)
            environment = SEGMENTS if name == "tapped_server" else {}
            _running[name] = start_vllm(
                *flags, speculation=SHARED[name], k=4, wait=False, environment=environment
            )
        elif not _running[name].running:
            _running[name].start()
        return _running[name]

    return get


def _shared(name: str) -> Any:
    """The fixture of a shared server that answers; all that the file needs start at once."""

    @pytest.fixture(scope="module", name=name)
    def server(request: pytest.FixtureRequest, shared_vllm: SharedVllm) -> VllmServer:
        for item in request.session.items:
            if item.path == request.path:
                for needed in sorted(_shared_by(item)):
                    shared_vllm(needed)
        shared_vllm(name).wait_healthy()
        return shared_vllm(name)

    return server


plain_server, good_server, bad_server, tapped_server, keyed_server = map(_shared, SHARED)


def _shared_by(item: pytest.Item) -> set[str]:
    return SHARED.keys() & set(getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Stop servers and clusters that the next file does not share; what a file left open is its
    own failure."""
    yield
    if nextitem is not None and nextitem.path == item.path:
        return
    if nextitem is None or not share_servers(item.path.name, nextitem.path.name):
        while _running:
            _running.popitem()[1].stop()
        while _clusters:
            _clusters.pop().stop()
    gc.collect()


@pytest.fixture(scope="module")
def systemd_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdMachine]:
    """A booted machine with a real systemd, one for each file of tests."""
    if reason := machines.missing():
        unavailable(reason)
    machine = SystemdMachine(tmp_path_factory.mktemp("machine"))
    try:
        machine.up()
        yield machine
    finally:
        machine.down()


@pytest.fixture(scope="module")
def kubernetes_cluster(tmp_path_factory: pytest.TempPathFactory) -> KubernetesCluster:
    """A real Kubernetes, one for each group of files; the image ``vllm`` is the simulated vLLM.

    Its containers need ``--host $(POD_IP)`` among their args. ``vllm-fragile`` is the same, but
    without speculation it never answers.
    """
    if _clusters:
        return _clusters[0]
    if not clusters.is_built():
        missing = f"no Kubernetes in {clusters.kubernetes_folder()}: 'make lab' builds it (350 MB)"
        _installed(clusters.build, missing)
    simulated = [sys.executable, "-m", "specwatch", "simulate"]
    script = (
        f"""case "$*" in *speculative*) exec {shlex.join(simulated)} "$@" ;; esac; sleep 9999"""
    )
    images = {"vllm": simulated, "vllm-fragile": ["sh", "-c", script, "sh"]}
    state = tmp_path_factory.mktemp("kubernetes")
    cluster = KubernetesCluster(clusters.kubernetes_folder(), state, images)
    try:
        cluster.start()
    except BaseException:
        cluster.stop()
        raise
    _clusters.append(cluster)
    return cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure the logs of the processes that ran meanwhile."""
    report = yield
    if report.failed:
        for server in _servers:
            if server.running or _was_written(server.log, report.start):
                report.sections.append((f"log of vLLM on port {server.port}", server.log_tail()))
        for process in processes.processes:
            if process.running or _was_written(process.log, report.start):
                report.sections.append((str(process.log), process.log_text()[-_SHOWN:]))
    return report


def _was_written(log: Path, since: float) -> bool:
    return log.exists() and log.stat().st_mtime >= since
