"""The variables of a unit, and the files that its command names, read as systemd would."""

from __future__ import annotations

import errno
import glob
import os

from specwatch.actuators.systemd_bus import LoadedUnit
from specwatch.actuators.systemd_variables import (
    SET_AT_START,
    assigned,
    parse_environment_file,
    without,
)
from specwatch.errors import ActuatorError
from specwatch.runtime.text_file import read_text


def environment_of(
    unit: LoadedUnit, inherited: tuple[str, ...], *, passes_on: bool
) -> dict[str, str | None]:
    """A unit's variables, of which later ones replace earlier ones: systemd.exec(5).

    ``inherited`` is what the manager gives to all units. ``passes_on``: what
    ``PassEnvironment=`` takes is in there too; else it is unknown. Raises ActuatorError.
    """
    known = assigned(inherited)
    environment: dict[str, str | None] = {**known, **dict.fromkeys(SET_AT_START)}
    for name in unit.pass_environment:
        if not passes_on:
            environment[name] = None
        elif name in known:
            environment[name] = known[name]
    environment |= assigned(unit.environment)
    for pattern, optional in unit.environment_files:
        environment |= _from_files(pattern, optional=optional)
    return without(environment, unit.unset_environment)


def _from_files(pattern: str, *, optional: bool) -> dict[str, str]:
    variables: dict[str, str] = {}
    paths = sorted(glob.glob(pattern, include_hidden=False)) or [pattern]
    for path in paths:
        try:
            variables |= parse_environment_file(read_text(path))
        except OSError as error:
            if not optional:
                raise ActuatorError(f"EnvironmentFile={path}: {error.strerror}") from error
        except ValueError as error:
            raise ActuatorError(f"EnvironmentFile={path}: {error}") from error
    return variables


def config_file(unit: LoadedUnit, path: str) -> str:
    """The text of a file that the unit's command names; raises OSError."""
    if unit.root:
        raise OSError(errno.EINVAL, f"the unit sees another file system: {unit.root}")
    folder = unit.working_directory.lstrip("!-") or "/"
    if not os.path.isabs(path) and not os.path.isabs(folder):
        raise OSError(errno.EINVAL, f"WorkingDirectory={folder} is not known")
    return read_text(os.path.join(folder, path))
