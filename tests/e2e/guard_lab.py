"""A fake vLLM as a unit in a machine, and specwatch's helper beside it."""

from __future__ import annotations

import json
import sys
from typing import Any

from specwatch.actuators.drop_in import NAME
from tests.e2e.processes import CHECKOUT
from tests.e2e.unit_lab import UNITS, install_helper
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

# What it was started with is all that is asked of this vLLM.
_VLLM = """\
#!/bin/sh
printf '%s\\n' "$@" > /run/lab-argv
test ! -e /run/lab-fail || exit 7
exec sleep infinity
"""
# The test run's Python may lie where only root may go; what is loaded stays.
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
from specwatch.actuators.systemd import systemd_actuator
from specwatch.errors import ActuatorError
from specwatch.config.service import SystemdService

method, *arguments = sys.argv[2:]
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
    """The machine with all of it; methods do as their names say."""

    def __init__(self, machine: SystemdMachine) -> None:
        self.machine = machine
        machine.write_file("/opt/lab/vllm", _VLLM, mode=0o755)
        install_helper(machine)
        self.unit(f"ExecStart={SERVE}")

    def unit(self, *lines: str) -> None:
        """Replace vLLM's unit, remove what earlier tests left, and start it."""
        self.machine.shell(
            f"rm -rf /run/lab-*; systemctl stop {UNIT} {HELPER} {SOCKET} || true;"
            f" umount {UNITS}/{UNIT}.d || true;"
            f" rm -rf {UNITS}/{UNIT} {UNITS}/{UNIT}.d /run/specwatch-guard {COUNTED}"
        )
        text = "\n".join(["[Service]", *lines, ""])
        self.machine.write_file(f"{UNITS}/{UNIT}", text)
        self.machine.shell(
            f"systemctl daemon-reload; systemctl reset-failed; systemctl start {UNIT} {SOCKET}"
        )

    def call(self, method: str, *arguments: str, who: str = MEMBER, **service: Any) -> Any:
        """Call the actuator as that user; what it returns, or the error."""
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
