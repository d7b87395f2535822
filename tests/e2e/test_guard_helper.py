"""The root helper under a real systemd: one unit, one file, and only for its group."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from typing import Any

import pytest

from specwatch.actuators.systemd.drop_in import NAME
from tests.e2e.processes import CHECKOUT
from tests.e2e.unit_lab import UNITS, install_helper, seen_by_services
from tests.e2e.waiting import eventually
from tests.lab.systemd_machine import SystemdMachine

UNIT = "vllm.service"
HELPER = "specwatch-guard@vllm.service"
SOCKET = "specwatch-guard@vllm.socket"
SOCKET_FILE = "/run/specwatch-guard/vllm.sock"
COUNTED = f"/var/lib/specwatch-guard/{UNIT}.json"
DROP_IN = f"{UNITS}/{UNIT}.d/{NAME}"
SPECULATION = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"""
SERVE = f"/opt/lab/vllm serve m {SPECULATION} --port 80"
PLAIN = ["serve", "m", "--port", "80"]

# This vLLM only notes the words that it was started with.
_VLLM = """\
#!/bin/sh
printf '%s\\n' "$@" > /run/lab-argv
exec sleep infinity
"""
# The Python of the test run may be readable by root only; what is loaded can still be used.
_BECOME = """\
import os, pwd
def become(name):
    user = pwd.getpwnam(name)
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    os.environ["HOME"] = user.pw_dir
    os.environ["XDG_RUNTIME_DIR"] = f"/run/user/{user.pw_uid}"
"""
_CALL = """\
import json, sys
import msgspec
from specwatch.actuators.base import Claim
from specwatch.actuators.systemd.unit import systemd_actuator
from specwatch.errors import ActuatorError
from specwatch.config.service import SystemdService

method, *claims = sys.argv[2:]
parts = [claim.partition("@") for claim in claims]
arguments = [Claim(incident, int(version or 0)) for incident, _, version in parts]
become(WHO)
actuator = systemd_actuator(SystemdService(kind="systemd", **json.loads(sys.argv[1])))
try:
    print(json.dumps(msgspec.to_builtins(getattr(actuator, method)(*arguments))))
except ActuatorError as error:
    print(json.dumps({"error": str(error), "changed": error.changed}))
finally:
    actuator.close()
"""
MEMBER, STRANGER, ROOT = "specwatch", "nobody", "root"


class GuardLab:
    """A fake vLLM as a unit in a machine, and the helper of specwatch beside it."""

    def __init__(self, machine: SystemdMachine) -> None:
        self.machine = machine
        machine.write_file("/opt/lab/vllm", _VLLM, mode=0o755)
        install_helper(machine)

    def unit(self, *lines: str) -> None:
        """Replace vLLM's unit, remove what earlier tests left, and start it."""
        self.machine.shell(
            f"rm -rf /run/lab-*; systemctl stop {UNIT} {HELPER} {SOCKET} || true;"
            f" rm -rf {UNITS}/{UNIT} {UNITS}/{UNIT}.d /run/specwatch-guard {COUNTED}"
        )
        text = "\n".join(["[Service]", *lines, ""])
        self.machine.write_file(f"{UNITS}/{UNIT}", text)
        self.machine.shell(
            f"systemctl daemon-reload; systemctl reset-failed; systemctl start {UNIT} {SOCKET}"
        )

    def call(self, method: str, *arguments: str, who: str = MEMBER, **service: Any) -> Any:
        """Call the actuator as that user, for ``INCIDENT@VERSION``; what it returns, or the
        error."""
        asked = json.dumps({"unit": UNIT, **service})
        return json.loads(self.python(_CALL, asked, method, *arguments, who=who))

    def python(self, script: str, *arguments: str, who: str) -> str:
        """Run a script, with ``become(WHO)`` after its imports; what it printed."""
        return self.machine.run(*self.python_command(script, *arguments, who=who)).stdout

    def python_command(self, script: str, *arguments: str, who: str) -> list[str]:
        """The command that does it."""
        text = _BECOME + script.replace("WHO", repr(who))
        return ["env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-c", text, *arguments]

    def argv(self) -> list[str]:
        """The words that vLLM was last started with."""
        return self.machine.shell("cat /run/lab-argv").splitlines()

    def show(self, name: str, unit: str = UNIT) -> str:
        return self.machine.show(name, unit)

    def has_drop_in(self) -> bool:
        """Whether our file is there."""
        return self.machine.run("test", "-e", DROP_IN, check=False).returncode == 0


@pytest.fixture(scope="module")
def installed(systemd_machine: SystemdMachine) -> GuardLab:
    return GuardLab(systemd_machine)


@pytest.fixture
def lab(installed: GuardLab) -> GuardLab:
    """vLLM runs with speculation, the helper's socket is open, nothing else was ever done."""
    installed.unit(f"ExecStart={SERVE}")
    return installed


@pytest.mark.parametrize("who", [MEMBER, ROOT])
def test_disable_and_enable(lab: GuardLab, who: str) -> None:
    """By the helper, and by root's own hand, just the same."""
    assert lab.call("status", who=who)["mode"] == "on"
    plan = lab.call("plan", who=who)
    assert plan["files"][0]["path"] == DROP_IN
    assert not lab.has_drop_in()
    before = lab.show("InvocationID")
    assert lab.call("disable", "one", who=who) is None
    status = lab.call("status", who=who)
    assert (status["mode"], status["life"]) == ("off", "up")
    assert status["instance"] == lab.show("InvocationID") != before
    eventually(lambda: lab.argv() == PLAIN, what="vLLM runs without speculation", within=120)
    text = lab.machine.shell(f"cat {DROP_IN}")
    assert text == plan["files"][0]["after"].replace("INCIDENT", "one")
    assert lab.call("enable", "one", who=who) is None
    assert lab.call("status", who=who)["mode"] == "on"
    assert not lab.has_drop_in()
    eventually(lambda: len(lab.argv()) == 6, what="vLLM runs with speculation", within=120)


_RULES = """\
import subprocess
from specwatch.actuators.base import Claim
from specwatch.actuators.systemd.unit import system_unit

become(WHO)
actuator = system_unit("vllm.service", timeout=60)
for incident in ("one", "two"):
    actuator.disable(Claim(incident))
    print(actuator.status().mode)
stats = "org.freedesktop.DBus.Debug.Stats"
call = ("busctl", "call", "org.freedesktop.DBus", "/org/freedesktop/DBus", stats)
print(subprocess.check_output([*call, "GetAllMatchRules"], text=True))
actuator.close()
"""


def test_no_signals_are_received_after_a_restart(lab: GuardLab) -> None:
    """The bus would keep those of all jobs of the machine while root's daemon observes."""
    found = lab.python(_RULES, who=ROOT)
    assert found.splitlines()[:2] == ["off", "off"]
    assert "JobRemoved" not in found
    assert "a{sas}" in found, "the bus listed no rules at all"


def test_it_acts_once_for_an_incident(lab: GuardLab) -> None:
    assert lab.call("disable", "one") is None
    first = lab.show("InvocationID")
    lab.machine.run("systemctl", "kill", "-s", "KILL", HELPER)
    assert lab.call("disable", "one") is None
    assert lab.show("InvocationID") == first
    assert lab.call("disable", "two") is None
    assert lab.show("InvocationID") != first


def test_a_call_that_another_daemon_has_overtaken_is_refused(lab: GuardLab) -> None:
    """Its daemon was stopped before it was sent, and goes on later."""
    assert lab.call("disable", "one@1800000007") is None
    assert lab.call("enable", "two@1800000009") is None
    last = lab.show("InvocationID")
    late = lab.call("disable", "one@1800000007")
    assert "restarted by a later order than this one" in late["error"]
    assert f"remove /run/specwatch-guard/{UNIT}.json" in late["error"]
    assert late["changed"] is False
    assert (lab.show("InvocationID"), lab.has_drop_in()) == (last, False)


def test_it_restarts_no_more_often_than_root_allows(lab: GuardLab) -> None:
    """Whatever it is asked for, and however often it is killed."""
    limits = f"{UNITS}/{HELPER}.d/limits.conf"
    lab.machine.write_file(
        limits,
        "[Service]\nEnvironment=SPECWATCH_GUARD_MAX_SWITCHES=4 SPECWATCH_GUARD_COOLDOWN=1ms\n",
    )
    lab.machine.run("systemctl", "daemon-reload")
    instances = [lab.show("InvocationID")]
    refused = []
    for number in range(6):
        found = lab.call("disable", f"i{number}")
        refused.append(found is not None and "at most 4 times in 24 hours" in found["error"])
        instances.append(lab.show("InvocationID"))
        lab.machine.run("systemctl", "kill", "-s", "KILL", HELPER, check=False)
    assert refused == [False] * 3 + [True] * 3
    assert len(set(instances)) == 4
    assert "at most 4 times" in lab.call("plan")["error"]
    assert lab.call("enable", "back") is None
    found = lab.machine.shell(f"stat -c '%a %U' {COUNTED} $(dirname {COUNTED})")
    assert found.split() == ["600", "root", "700", "root"]
    lab.machine.run("rm", limits)


def test_a_stranger_is_refused(lab: GuardLab) -> None:
    """Who is not in the group learns nothing and starts nothing."""
    found = lab.call("disable", "one", who=STRANGER)
    assert "root and the group specwatch only" in found["error"]
    assert lab.show("ActiveState", HELPER) == "inactive"
    lab.machine.run("systemctl", "stop", SOCKET)
    assert f"systemctl enable --now {SOCKET}" in lab.call("status")["error"]


_ASK = """\
import socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(sys.argv[1])
    sock.sendall(b'{"do": "status"}\\n')
    print(sock.recv(9999).decode())
"""


def test_the_daemon_may_use_it_from_within_its_own_sandbox(lab: GuardLab) -> None:
    """As the user of sysusers.d, with the hardening of specwatch.service as it is."""
    lab.machine.write_file(
        f"{UNITS}/specwatch.service", (CHECKOUT / "systemd/specwatch.service").read_text()
    )
    lab.machine.write_file("/opt/lab/ask.py", _ASK)
    call = f"{sys.executable} /opt/lab/ask.py {SOCKET_FILE}"
    lab.machine.write_file(
        f"{UNITS}/specwatch.service.d/lab.conf",
        f"[Service]\nType=oneshot\nRestart=no\nWatchdogSec=0\nExecStart=\nExecStart={call}\n"
        + seen_by_services(),
    )
    lab.machine.shell("systemctl daemon-reload; systemctl start specwatch.service")
    assert '"mode":"on"' in lab.machine.journal("specwatch.service")


def test_a_secret_of_a_file_that_only_root_may_read_stays_there(lab: GuardLab) -> None:
    """Neither the plan of the helper nor the unit in systemd shows it."""
    secret = "sk-0123456789"
    args = SPECULATION.replace("'", "").replace('"', '\\"').replace("{", "'{").replace("}", "}'")
    lab.machine.write_file(
        "/etc/lab.env", f'ARGS="{args} --api-key {secret} --port 80"\n', mode=0o600
    )
    lab.unit("EnvironmentFile=/etc/lab.env", "ExecStart=/opt/lab/vllm serve m $ARGS")
    plan = lab.call("plan")
    assert lab.call("disable", "one") is None
    eventually(
        lambda: lab.argv() == ["serve", "m", "--api-key", secret, "--port", "80"],
        what="vLLM has its key, and no speculation",
        within=120,
    )
    look = (
        "import subprocess\nbecome(WHO)\n"
        f"for verb in ('show', 'cat', 'status'):\n"
        f"    subprocess.run(['systemctl', '--no-pager', verb, {UNIT!r}], stderr=-2)\n"
    )
    # What runs has its arguments: these `systemctl status` would show, for as long as it does.
    lab.machine.shell(f"systemctl stop {UNIT}; rm /run/lab-argv")
    shown = lab.python(look, who=STRANGER)
    assert "${SPECWATCH_WORD_1}" in shown
    assert secret not in shown + json.dumps([plan, lab.call("plan"), lab.call("status")])
    for name in ("conf", "env"):
        found = lab.machine.shell(f"stat -c '%a %U' {UNITS}/{UNIT}.d/90-specwatch.{name}")
        assert found.split() == ["600", "root"]
    assert lab.call("enable", "two") is None
    assert not lab.has_drop_in()
    left = lab.machine.shell(f"grep -rl {secret} /etc/systemd /run/specwatch-guard || true")
    assert left == ""


_HOSTILE = """\
import json, socket, sys
become(WHO)
found = []
for text in json.loads(sys.argv[2]):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(120)
        sock.connect(sys.argv[1])
        answer = b""
        try:
            sock.sendall(text.encode("latin-1"))
            sock.shutdown(socket.SHUT_WR)
        except BrokenPipeError:
            pass
        try:
            while data := sock.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
        found.append(answer.decode())
print(json.dumps(found))
"""
HOSTILE = [
    "",
    "\x00\xff\xfe\n",
    "A" * 100_000,
    '{"do": "status"',
    '{"do": ' + "[" * 900 + "\n",
    '{"do": "status"}\n{"do": "status"}\n',
    '{"do": "status", "unit": "ssh.service"}\n',
    '{"do": "disable", "incident": "a\\nExecStart=/bin/sh"}\n',
    '{"do": "disable", "incident": "a", "drop_in": "[Service]"}\n',
]
"""One of each kind: tests/actuators/test_helper_server.py has more invalid requests."""


def test_hostile_requests_change_nothing_and_end_nothing(lab: GuardLab) -> None:
    before = lab.show("InvocationID")
    answers = json.loads(lab.python(_HOSTILE, SOCKET_FILE, json.dumps(HOSTILE), who=MEMBER))
    for text, answer in zip(HOSTILE, answers, strict=True):
        # What is far too long may be cut off without a word.
        assert "no request" in answer or (not answer and len(text) > 1024), (text, answer)
    assert lab.call("status")["mode"] == "on"
    assert lab.show("NRestarts", HELPER) == "0"
    assert not lab.has_drop_in()
    assert lab.show("InvocationID") == before


def test_many_silent_connections_do_not_lock_others_out(lab: GuardLab) -> None:
    """Each is given up after a few seconds."""
    script = (
        "import socket, sys, time\n"
        "become(WHO)\n"
        "held = [socket.socket(socket.AF_UNIX) for _ in range(60)]\n"
        "[sock.connect(sys.argv[1]) for sock in held]\n"
        "print('held', flush=True); time.sleep(600)\n"
    )
    lab.machine.run(
        "systemd-run", "--unit=lab-hold", *lab.python_command(script, SOCKET_FILE, who=MEMBER)
    )
    eventually(lambda: "held" in lab.machine.journal("lab-hold"), what="held", within=120)
    assert lab.call("status")["mode"] == "on"
    lab.machine.run("systemctl", "stop", "lab-hold")


@pytest.mark.parametrize("instance", ["no-such-unit", "a\\x0a\\x25n", "vllm@", "-.x"])
def test_a_helper_without_a_unit_answers_with_a_failure(lab: GuardLab, instance: str) -> None:
    """It answers, rather than end and be started again and again."""
    unit = f"specwatch-guard@{instance}.socket"
    lab.machine.run("systemctl", "start", unit)
    request = json.dumps(['{"do": "disable", "incident": "a"}\n'])
    path = f"/run/specwatch-guard/{instance}.sock"
    assert "failure" in lab.python(_HOSTILE, path, request, who=MEMBER)
    lab.machine.run("systemctl", "stop", unit)


def test_it_can_write_to_its_folder_only(lab: GuardLab) -> None:
    lab.call("status")
    pid = lab.show("MainPID", HELPER)
    assert pid != "0"
    inside = ("nsenter", "-t", pid, "-m", "touch")
    for folder in ("/", "/etc", UNITS, f"{UNITS}/ssh.service.d", "/usr", "/var/lib"):
        lab.machine.run("mkdir", "-p", folder)
        done = lab.machine.run(*inside, f"{folder}/was-here", check=False)
        assert "Read-only file system" in done.stderr, folder
    lab.machine.run(*inside, f"{UNITS}/{UNIT}.d/was-here")
    status = lab.machine.shell(f"cat /proc/{pid}/status")
    assert re.findall(r"Cap(?:Prm|Eff|Bnd):\t(\w+)", status) == ["0000000000000004"] * 3


def test_it_ends_when_nobody_asks_and_comes_back(lab: GuardLab) -> None:
    shorter = "ExecStart=\nExecStart=/opt/specwatch/bin/specwatch guard-helper --idle 2s %i.service"
    idle = f"{UNITS}/{HELPER}.d/idle.conf"
    lab.machine.write_file(idle, f"[Service]\n{shorter}\n")
    lab.machine.run("systemctl", "daemon-reload")
    lab.call("status")
    pid = lab.show("MainPID", HELPER)
    eventually(lambda: lab.show("ActiveState", HELPER) == "inactive", what="it ended", within=120)
    assert lab.show("Result", HELPER) == "success"
    assert lab.call("status")["mode"] == "on"
    assert lab.show("MainPID", HELPER) not in ("0", pid)
    lab.machine.run("rm", idle)


def test_a_users_own_unit_needs_no_helper(lab: GuardLab) -> None:
    """All of it happens in the user's home, by the user's manager."""
    home = "/home/lab-user"
    units = f"{home}/.config/systemd/user"
    lab.machine.write_file("/opt/lab-user/vllm", "#!/bin/sh\nexec sleep infinity\n", mode=0o755)
    lab.machine.run("useradd", "-d", home, "lab-user")
    lab.machine.write_file(
        f"{units}/{UNIT}",
        f"[Service]\nPassEnvironment=HOME\nExecStart=/opt/lab-user/vllm serve ${{HOME}}/m"
        f" {SPECULATION}\n",
    )
    lab.machine.shell(f"chown -R lab-user {home}; systemctl start user@$(id -u lab-user).service")
    call = partial(lab.call, who="lab-user", scope="user")
    assert call("status")["life"] == "stopped"
    assert call("disable", "one") is None
    status = call("status")
    assert (status["mode"], status["life"]) == ("off", "up")
    drop_in = f"{units}/{UNIT}.d/90-specwatch.conf"
    assert 'ExecStart=/opt/lab-user/vllm serve "${HOME}/m"\n' in lab.machine.shell(f"cat {drop_in}")
    assert call("enable", "one") is None
    assert call("status")["mode"] == "on"
    assert lab.machine.run("test", "-e", drop_in, check=False).returncode == 1
    lab.machine.shell("systemctl stop user@$(id -u lab-user).service")


def test_a_unit_that_does_not_start_without_speculation(lab: GuardLab) -> None:
    """The way back is open."""
    lab.unit(f"ExecStart={SERVE}", "ExecStartPost=/bin/test ! -e /run/lab-broken")
    lab.machine.write_file("/run/lab-broken", "")
    found = lab.call("disable", "one")
    assert "its job ended as failed" in found["error"]
    assert found["changed"] is True
    status = lab.call("status")
    assert (status["mode"], status["life"]) == ("off", "down")
    assert "exit-code" in status["detail"]
    lab.machine.run("rm", "/run/lab-broken")
    assert lab.call("enable", "one") is None
    status = lab.call("status")
    assert (status["mode"], status["life"]) == ("on", "up")


def test_a_stop_that_takes_too_long(lab: GuardLab) -> None:
    """It continues and has not failed yet; the same call again waits for it."""
    slow = "/run/lab-slow"
    stop = f"ExecStop=/bin/sh -c 'while test -e {slow}; do sleep 0.1; done'"
    lab.unit(f"ExecStart={SERVE}", stop)
    lab.machine.write_file(slow, "")
    assert lab.call("disable", "one", timeout="6s") is None
    assert lab.call("status")["life"] == "changing"
    again = lab.call("disable", "one", timeout="6s")
    assert "within 6s" in again["error"]
    lab.machine.run("rm", slow)
    assert lab.call("disable", "one", timeout="5m") is None
    eventually(lambda: lab.argv() == PLAIN, what="it ended well", within=120)
