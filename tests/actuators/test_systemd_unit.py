"""One unit is switched, or is left as it was.

Every test ends with a look at the files and at what systemd has in memory: a failure that says
that nothing was changed must have changed nothing.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from specwatch.actuators.base import Claim
from specwatch.actuators.systemd import drop_in
from specwatch.actuators.systemd.drop_in import UnitFiles
from specwatch.actuators.systemd.unit import SystemdUnit
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError, CannotStrip
from specwatch.guard.plan import ProcessState
from tests.actuators.fake_systemd import NAME, FakeSystemd

SPECULATION = """--speculative-config '{"method": "ngram"}'"""
PLAIN = ("/opt/vllm", "serve", "m", "--port", "80")


class Bench:
    """A unit with speculation, its systemd, and our hand on it."""

    def __init__(self, folder: Path) -> None:
        self.systemd = FakeSystemd(folder)
        self.systemd.write(f"/opt/vllm serve m {SPECULATION} --port 80")
        self.systemd.reload()
        self.files = UnitFiles(NAME, units=folder, records=folder / "records")
        self.unit = SystemdUnit(NAME, self.systemd, self.files, timeout=60)

    @property
    def command(self) -> tuple[str, ...]:
        """What systemd would start."""
        (command,) = self.systemd.load(NAME).commands
        return command.words

    def state(self) -> object:
        """Everything that a failure must not change."""
        root = self.systemd.folder
        kept = [path for path in sorted(root.rglob("*")) if "records" not in path.parts]
        return (
            [(path, path.read_text() if path.is_file() else "") for path in kept],
            self.systemd.load(NAME),
        )

    def refused(self, message: str, *, kind: type[ActuatorError] = ActuatorError) -> None:
        """``disable`` must fail with the message and change nothing."""
        before = self.state()
        with pytest.raises(kind, match=message) as caught:
            self.unit.disable(Claim("a"))
        assert not caught.value.changed
        assert self.state() == before
        assert self.systemd.restarts == 0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("ends", [(0.0,), (1e12, 0.0)], ids=["before it", "in it"])
def test_without_its_lease_it_restarts_nothing(bench: Bench, ends: tuple[float, ...]) -> None:
    left = iter(ends)
    with pytest.raises(ActuatorError, match="the lease of the guard has ended"):
        bench.unit.disable(Claim("a", until=lambda: next(left)))
    assert bench.systemd.restarts == 0


def test_an_order_that_another_daemon_has_overtaken_is_refused(bench: Bench) -> None:
    """It was sent before the daemon was stopped, and comes late."""
    bench.unit.disable(Claim("a", version=7))
    bench.unit.disable(Claim("a", version=7))
    bench.unit.enable(Claim("a", version=9))
    before = bench.state()
    with pytest.raises(ActuatorError, match="restarted by a later order") as caught:
        bench.unit.disable(Claim("a", version=7))
    assert not caught.value.changed
    assert (bench.state(), bench.systemd.restarts) == (before, 2)
    Path(str(caught.value).rpartition("remove ")[2]).unlink()
    bench.unit.disable(Claim("b", version=7))
    assert bench.systemd.restarts == 3, "the remedy that it names does not help"


def test_a_folder_that_keeps_counters_is_named_in_advance(bench: Bench) -> None:
    assert bench.unit.plan().notes == ()
    bench.systemd.environment_lines = ("PROMETHEUS_MULTIPROC_DIR=/var/metrics",)
    assert "remove what is in that folder at each start" in bench.unit.plan().notes[0]


def test_disable_and_enable_go_there_and_back(bench: Bench) -> None:
    assert bench.unit.status().mode is Mode.ON
    before = bench.command
    bench.unit.disable(Claim("a"))
    status = bench.unit.status()
    assert (status.mode, status.life, status.instance) == (Mode.OFF, ProcessState.UP, "i1")
    assert bench.command == PLAIN
    assert bench.files.drop_in.stat().st_mode & 0o777 == 0o600
    assert bench.files.drop_in.parent.stat().st_mode & 0o777 == 0o755
    bench.unit.enable(Claim("a"))
    assert bench.unit.status().mode is Mode.ON
    assert (bench.systemd.restarts, bench.command) == (2, before)
    assert not bench.files.drop_in.parent.exists()


def test_the_plan_is_what_is_done(bench: Bench) -> None:
    """Word for word, and planning alone does nothing."""
    before = bench.state()
    plan = bench.unit.plan()
    assert bench.state() == before
    bench.unit.disable(Claim("INCIDENT"))
    assert plan.after == bench.command
    (change,) = plan.files
    assert (change.before, change.after) == (None, bench.files.drop_in.read_text())
    again = bench.unit.plan()
    assert (again.before, again.after, again.files) == (plan.before, plan.after, ())


def test_the_same_call_again_restarts_nothing(bench: Bench) -> None:
    """A guard that was killed calls again; another incident is another restart."""
    for incident, restarts in (("a", 1), ("a", 1), ("b", 2)):
        bench.unit.disable(Claim(incident))
        assert bench.systemd.restarts == restarts
    for incident, restarts in (("b", 3), ("b", 3), ("c", 4)):
        bench.unit.enable(Claim(incident))
        assert bench.systemd.restarts == restarts


def test_a_restart_that_takes_long_is_no_failure_yet(bench: Bench) -> None:
    """Whether it comes is seen by the server's health, for which there is a time of its own."""
    bench.systemd.job_result = "waiting"
    bench.unit.disable(Claim("a"))
    assert (bench.systemd.restarts, bench.command) == (1, PLAIN)


@pytest.mark.parametrize("result", ["failed", "canceled"])
def test_a_restart_that_goes_wrong_is_told_as_a_change(bench: Bench, result: str) -> None:
    """Where only the process was touched, too; and the way back is open."""
    bench.systemd.job_result = result
    for incident in ("changes the files", "finds them as they should be"):
        with pytest.raises(ActuatorError, match="was not restarted") as caught:
            bench.unit.disable(Claim(incident))
        assert caught.value.changed
    bench.systemd.job_result = "done"
    bench.unit.enable(Claim("a"))
    assert bench.unit.status().mode is Mode.ON
    assert bench.unit.status().life is ProcessState.UP


@pytest.mark.parametrize(
    ("state", "message"), [("masked", "unmask"), ("not-found", "does not exist"), ("odd", "is odd")]
)
def test_a_unit_that_cannot_be_started_is_refused(bench: Bench, state: str, message: str) -> None:
    bench.systemd.load_state = state
    bench.refused(message)
    status = bench.unit.status()
    assert status.mode is None
    assert message in status.detail


def test_a_unit_without_speculation_is_refused(bench: Bench) -> None:
    bench.systemd.write("/opt/vllm serve m")
    bench.systemd.reload()
    bench.refused("no speculation", kind=CannotStrip)
    assert bench.unit.status().mode is Mode.OFF
    with pytest.raises(CannotStrip):
        bench.unit.plan()


def test_several_commands_are_refused(bench: Bench) -> None:
    bench.systemd.write("/bin/a", "/bin/b")
    bench.systemd.reload()
    bench.refused("has 2 ExecStart= lines")
    assert bench.unit.status().mode is None


def test_a_later_drop_in_is_found_out(bench: Bench) -> None:
    """By the plan, so that nobody waits for requests to end in vain; the file is named."""
    bench.systemd.write("", f"/opt/vllm serve m2 {SPECULATION}", name="vllm-owner.conf")
    bench.systemd.reload()
    bench.refused(r"vllm-owner\.conf counts after .*90-specwatch\.conf")
    with pytest.raises(ActuatorError, match=r"vllm-owner\.conf counts after"):
        bench.unit.plan()
    earlier = bench.systemd.drop_ins / "50-owner.conf"
    (bench.systemd.drop_ins / "vllm-owner.conf").rename(earlier)
    bench.systemd.write(name="vllm-owner.conf")
    bench.systemd.reload()
    bench.unit.disable(Claim("one"))
    assert bench.unit.status().mode is Mode.OFF


def test_a_drop_in_that_systemd_does_not_read_is_found_out(bench: Bench) -> None:
    bench.systemd.ignores_drop_ins = True
    bench.refused("does not read")


def test_an_undo_that_fails_is_told_as_a_change(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ActuatorError("no answer")

    monkeypatch.setattr(bench.systemd, "reload", refuse)
    with pytest.raises(ActuatorError, match="could not be put back") as caught:
        bench.unit.disable(Claim("a"))
    assert caught.value.changed


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("call", ["fsync", "open"])
def test_a_file_that_cannot_be_written_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    bench.systemd.drop_ins.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(drop_in.os, call, fail)
        bench.refused(os.strerror(number))


def test_a_drop_in_that_somebody_removed_is_no_obstacle(bench: Bench) -> None:
    bench.unit.disable(Claim("a"))
    bench.files.drop_in.unlink()
    assert "changed since systemd read them" in bench.unit.status().detail
    bench.unit.enable(Claim("a"))
    assert bench.unit.status().mode is Mode.ON
    assert bench.systemd.restarts == 2


def test_a_unit_changed_by_its_owner_is_told_and_made_anew(bench: Bench) -> None:
    """The command of a new deployment counts, not that of the drop-in's time."""
    bench.unit.disable(Claim("a"))
    bench.systemd.write(f"/opt/vllm serve new {SPECULATION}")
    bench.systemd.reload()
    assert "changed since speculation was switched off" in bench.unit.status().detail
    assert any("again, without speculation" in step for step in bench.unit.plan().steps)
    bench.unit.disable(Claim("b"))
    assert bench.command == ("/opt/vllm", "serve", "new")
    assert bench.unit.status().detail == ""


def test_a_drop_in_made_anew_that_cannot_be_is_put_back(bench: Bench) -> None:
    bench.unit.disable(Claim("a"))
    bench.systemd.write("/bin/sh -c '$UNKNOWN'")
    bench.systemd.reload()
    before = bench.state()
    with pytest.raises(CannotStrip):
        bench.unit.disable(Claim("b"))
    assert bench.state() == before
    assert bench.systemd.restarts == 1


def test_an_edited_drop_in_is_replaced(bench: Bench) -> None:
    bench.unit.disable(Claim("a"))
    with bench.files.drop_in.open("a") as file:
        file.write("ExecStart=\nExecStart=/bin/other\n")
    bench.systemd.reload()
    bench.unit.disable(Claim("b"))
    assert bench.command == PLAIN


def test_variables_are_read_from_where_the_unit_has_them(bench: Bench, tmp_path: Path) -> None:
    """Later files count more than earlier ones, files more than Environment=."""
    (tmp_path / "one.env").write_text(f'ARGS="{SPECULATION.replace(chr(34), chr(92) + chr(34))}"\n')
    (tmp_path / "two.env").write_text("MODEL=second\n")
    bench.systemd.extra = {
        "environment": ("MODEL=first", "ARGS=--nothing"),
        "environment_files": ((f"{tmp_path}/*.env", False), (f"{tmp_path}/none", True)),
    }
    bench.systemd.write("/opt/vllm serve ${MODEL} $ARGS --port 80")
    bench.systemd.reload()
    assert bench.unit.plan().after == ("/opt/vllm", "serve", "${MODEL}", "--port", "80")
    bench.systemd.extra["environment_files"] = ((f"{tmp_path}/none", False),)
    bench.refused("EnvironmentFile=.*/none: No such file")


SECRET = "sk-0123456789"


@pytest.fixture
def secretive(bench: Bench, tmp_path: Path) -> Bench:
    """A unit whose API key stands where only root may read, in one variable with speculation."""
    args = f"{SPECULATION} --api-key {SECRET} --port 80 --served-model-name chat"
    escaped = args.replace("\\", "\\\\").replace('"', '\\"')
    (tmp_path / "root.env").write_text(f'ARGS="{escaped}"\nHF_TOKEN=hf-{SECRET}\n')
    bench.systemd.extra = {"environment_files": ((f"{tmp_path}/root.env", False),)}
    bench.systemd.write("/opt/vllm serve m $ARGS")
    bench.systemd.reload()
    return bench


def test_a_secret_of_a_variable_is_told_to_nobody(secretive: Bench) -> None:
    """Neither in the plan, which an unprivileged daemon asks for, nor by systemd, who tells all."""
    plan = secretive.unit.plan()
    assert SECRET not in repr(plan)
    secretive.unit.disable(Claim("INCIDENT"))
    files = secretive.files
    assert SECRET not in repr(secretive.systemd.load(NAME))
    assert SECRET not in files.drop_in.read_text()
    assert SECRET in files.variables.read_text()
    assert files.variables.stat().st_mode & 0o777 == 0o600
    words = secretive.command
    assert words == plan.after
    assert words[3:5] == ("--api-key", "${SPECWATCH_WORD_1}")
    assert [change.path for change in plan.files] == [str(files.variables), str(files.drop_in)]
    assert plan.files[0].after == (
        'SPECWATCH_WORD_1="***"\nSPECWATCH_WORD_2="80"\nSPECWATCH_WORD_3="chat"\n'
    )
    assert plan.files[1].after == files.drop_in.read_text()
    assert SECRET not in repr((secretive.unit.plan(), secretive.unit.status()))


def test_a_file_of_variables_that_was_changed_is_told_and_made_anew(secretive: Bench) -> None:
    secretive.unit.disable(Claim("a"))
    secretive.files.variables.unlink()
    assert secretive.unit.status().stale
    secretive.unit.disable(Claim("b"))
    assert not secretive.unit.status().stale
    assert SECRET in secretive.files.variables.read_text()


def test_a_later_file_that_takes_the_variables_away_is_found_out(
    secretive: Bench, tmp_path: Path
) -> None:
    """vLLM would start without its API key, and serve everybody."""
    (tmp_path / "later.env").write_text("SPECWATCH_WORD_1=\n")
    secretive.systemd.write(name="99-owner.conf")
    with (tmp_path / f"{NAME}.d" / "99-owner.conf").open("a") as file:
        file.write(f"EnvironmentFile={tmp_path}/later.env\n")
    secretive.systemd.reload()
    secretive.refused(r"99-owner\.conf counts after")


@pytest.mark.parametrize(
    "command", [f"/opt/vllm --api-key {SECRET}", "/bin/sh -c '/opt/wrapper $$X ${HF_TOKEN}'"]
)
def test_a_refusal_does_not_tell_a_secret(secretive: Bench, command: str) -> None:
    secretive.systemd.write(command)
    secretive.systemd.reload()
    with pytest.raises(CannotStrip) as caught:
        secretive.unit.plan()
    assert SECRET not in str(caught.value)
    assert SECRET not in secretive.unit.status().detail


def test_an_older_drop_in_with_a_secret_is_not_shown(secretive: Bench) -> None:
    """Written before such words were kept apart, and edited since."""
    files = secretive.files
    files.drop_in.parent.mkdir()
    line = f'["/opt/vllm", "serve", "--api-key", "{SECRET}"]'
    text = f"# specwatch: {line}\n[Service]\nExecStart=\nExecStart=/opt/vllm --api-key {SECRET}\n"
    files.drop_in.write_text(text)
    assert SECRET not in repr(secretive.unit.plan())
    secretive.systemd.reload()
    assert SECRET not in repr(secretive.unit.plan())


def test_a_variable_that_nobody_can_know_is_refused(bench: Bench) -> None:
    bench.systemd.extra = {"pass_environment": ("ARGS",)}
    bench.systemd.write(f"/opt/vllm serve m $ARGS {SPECULATION}")
    bench.systemd.reload()
    bench.refused("PassEnvironment", kind=CannotStrip)


@pytest.mark.parametrize(
    ("state", "life"),
    [
        ({"active_state": "reloading"}, ProcessState.UP),
        ({"active_state": "activating", "sub_state": "auto-restart"}, ProcessState.DOWN),
        ({"active_state": "activating", "sub_state": "start-pre"}, ProcessState.CHANGING),
        ({"active_state": "active", "has_job": True}, ProcessState.CHANGING),
        ({"active_state": "inactive"}, ProcessState.STOPPED),
        ({"active_state": "inactive", "result": "exit-code"}, ProcessState.DOWN),
        ({"active_state": "failed", "result": "oom-kill"}, ProcessState.DOWN),
    ],
)
def test_its_life_is_what_systemd_says(
    bench: Bench, state: dict[str, object], life: ProcessState
) -> None:
    bench.systemd.extra = state
    status = bench.unit.status()
    assert status.life is life
    assert ("oom-kill" in status.detail) == (state.get("result") == "oom-kill")


def test_a_config_file_is_found_where_the_unit_runs(bench: Bench, tmp_path: Path) -> None:
    """And its words are not for everybody who asks systemd."""
    (tmp_path / "vllm.yaml").write_text("speculative-config: {method: ngram}\nport: 80\n")
    bench.systemd.extra = {"working_directory": f"!{tmp_path}"}
    bench.systemd.write("/opt/vllm serve ${HOME}/m --config vllm.yaml")
    bench.systemd.reload()
    plan = bench.unit.plan()
    assert plan.after == ("/opt/vllm", "serve", "${HOME}/m", "--port", "${SPECWATCH_WORD_1}")
    assert plan.files[0].after == 'SPECWATCH_WORD_1="80"\n'
    bench.systemd.extra["root"] = "/srv/other"
    bench.refused("/srv/other")
