"""A systemd of one unit: reads its files when told to, and restarts as it is told to."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

from specwatch.actuators.systemd.bus import LoadedUnit
from specwatch.actuators.systemd.loaded_unit import UnitCommand
from specwatch.errors import ActuatorError

NAME = "vllm.service"


@dataclass
class FakeSystemd:
    """Files lie in ``folder``; ``refuses`` maps a method to the error it raises, once."""

    folder: Path
    load_state: str = "loaded"
    job_result: str = "done"
    environment_lines: tuple[str, ...] = ()
    restarts: int = 0
    reloads: int = 0
    refuses: dict[str, ActuatorError] = field(default_factory=dict)
    ignores_drop_ins: bool = False
    extra: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.drop_ins = self.folder / f"{NAME}.d"
        self.fragment = self.folder / NAME
        self.unit = LoadedUnit(NAME, "loaded", active_state="active", instance="i0")
        self.reload()
        self.reloads = 0

    def write(self, *lines: str, name: str | None = None) -> None:
        """A file of the unit's owner with these ``ExecStart=`` lines."""
        path = self.drop_ins / name if name else self.fragment
        path.parent.mkdir(exist_ok=True)
        path.write_text("[Service]\n" + "".join(f"ExecStart={line}\n" for line in lines))

    def load(self, name: str) -> LoadedUnit:
        assert name == NAME
        unit = replace(
            self.unit,
            needs_reload=self._files() != self._read or self._texts() != self._seen,
            load_state=self.load_state,
            **self.extra,  # type: ignore[arg-type]
        )
        files = (*unit.environment_files, *self._environment_files)
        unit = replace(unit, environment_files=files)
        return unit if self.load_state == "loaded" else replace(unit, commands=())

    def environment(self) -> tuple[str, ...]:
        return self.environment_lines

    def reload(self) -> None:
        self._refuse("reload")
        self.reloads += 1
        self._read, self._seen = self._files(), self._texts()
        commands: list[UnitCommand] = []
        self._environment_files: list[tuple[str, bool]] = []
        for path in self._read:
            for value in re.findall("^EnvironmentFile=(.*)$", path.read_text(), re.MULTILINE):
                self._environment_files.append((value.replace("%%", "%"), False))
            for value in re.findall("^ExecStart=(.*)$", path.read_text(), re.MULTILINE):
                words = tuple(shlex.split(value.replace("%%", "%")))
                commands = [*commands, UnitCommand(words[0], words)] if words else []
        self.unit = replace(
            self.unit,
            fragment=str(self.fragment),
            drop_ins=tuple(str(path) for path in self._read if path != self.fragment),
            commands=tuple(commands),
        )

    def restart(self, name: str, timeout: float) -> str:
        self._refuse("restart")
        self.restarts += 1
        state = {"done": "active", "waiting": "deactivating"}.get(self.job_result, "failed")
        self.unit = replace(
            self.unit,
            instance=f"i{self.restarts}",
            active_state=state,
            result="success" if state == "active" else "exit-code",
            has_job=self.job_result == "waiting",
        )
        return self.job_result

    def settle(self, name: str, timeout: float) -> LoadedUnit:
        return self.load(name)

    def close(self) -> None:
        pass

    def _files(self) -> list[Path]:
        drop_ins = [] if self.ignores_drop_ins else sorted(self.drop_ins.glob("*.conf"))
        return [path for path in (self.fragment, *drop_ins) if path.exists()]

    def _texts(self) -> list[str]:
        return [path.read_text() for path in self._files()]

    def _refuse(self, method: str) -> None:
        if method in self.refuses:
            raise self.refuses.pop(method)
