"""The command of a container: what its program gets, and the same without speculation.

Source: "Define a Command and Arguments for a Container" of Kubernetes, and ``expansion.Expand`` of
its sources: ``$(NAME)`` is replaced within its word, ``$$`` is a dollar.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from specwatch.config import masking
from specwatch.errors import ActuatorError, CannotStrip
from specwatch.vllm_cli import strip

Manifest = Mapping[str, Any]
"""An object of Kubernetes, or a part of one, as in its JSON."""
ReadConfigMap = Callable[[Manifest], Mapping[str, str]]
"""The data of the ConfigMap that a reference names, which is empty where an optional one is not
there; raises CannotStrip if it cannot be read."""

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_MARK = "\0{}\0"
"""In place of a value that only the node knows: the reader of vLLM takes it for a value."""
_MARKED = re.compile("\0([^\0]*)\0")
_MARK_IN_MESSAGE = re.compile(r"\$\.\.\.([^$\s]*)\$\.\.\.")


class Words(msgspec.Struct, frozen=True):
    """``command`` and ``args`` of a container; one that is empty is the image's own."""

    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()

    @classmethod
    def of(cls, container: Manifest) -> Words:
        """The words as the container spells them."""
        return cls(tuple(container.get("command", ())), tuple(container.get("args", ())))

    def shown(self) -> tuple[str, ...]:
        """All words for a person, with secrets masked."""
        return masking.masked([*self.command, *self.args])


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The words without speculation; unchanged, with no ``removed``, if nothing asks for it."""

    words: Words
    removed: tuple[str, ...]
    notes: tuple[str, ...]


def variables_of(container: Manifest, config_map: ReadConfigMap) -> dict[str, str]:
    """The variables that ``$(NAME)`` may name; those of Secrets are missing.

    What only the node knows, such as the pod's address, is a mark. ConfigMaps are read only if a
    word names a variable.
    """
    words = Words.of(container)
    variables: dict[str, str] = {}
    if not any(_REFERENCE.search(word) for word in (*words.command, *words.args)):
        return variables
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            data, prefix = config_map(source["configMapRef"]), source.get("prefix", "")
            variables |= {f"{prefix}{key}": value for key, value in data.items()}
        elif "secretRef" in source:
            variables.clear()  # which of them it replaces cannot be read
    for variable in container.get("env", ()):
        name, origin = variable["name"], variable.get("valueFrom", {})
        variables.pop(name, None)
        if not origin:
            variables[name] = _expanded(variable.get("value", ""), variables)
        elif "configMapKeyRef" in origin:
            reference = origin["configMapKeyRef"]
            value = config_map(reference).get(reference["key"])
            variables |= {} if value is None else {name: value}
        elif "secretKeyRef" not in origin:
            variables[name] = _MARK.format(name)
    return variables


def without_speculation(container: Manifest, variables: Mapping[str, str]) -> Rewritten:
    """The container's words without speculation; others keep their spelling.

    Raises CannotStrip with what was found, the reason and the remedy.
    """
    words = Words.of(container)
    spelt = [*words.command, *words.args]
    given = [_expanded(word, variables) for word in spelt]
    # Without a command the image's own starts vLLM, as with `docker run IMAGE ARGS`.
    before = [] if words.command else ["docker", "run", container["image"]]
    try:
        stripped = strip([*before, *given])
    except CannotStrip as error:
        secrets = masking.secrets_in(given, variables)
        reason = _MARK_IN_MESSAGE.sub(r"$(\1)", masking.masked_text(str(error), secrets))
        raise CannotStrip(f"container {container['name']}: {reason}") from None
    if not stripped.removed:
        return Rewritten(words, (), stripped.notes)

    def spell(word: str) -> str:
        for name in _MARKED.findall(word):
            if name not in variables:
                raise CannotStrip(
                    f"container {container['name']}: its text for a shell has $({name}), which"
                    f' cannot be read here and may be several words: write "${name}" in double'
                    " quotes"
                )
        return _MARKED.sub(r"$(\1)", word.replace("$", "$$"))

    command: list[str] = []
    args: list[str] = []
    replaced: list[str] = []
    wanted = stripped.command[len(before) :]
    matcher = difflib.SequenceMatcher(None, given, wanted, autojunk=False)
    for change, start, stop, new, new_stop in matcher.get_opcodes():
        if change == "equal":
            for place in range(start, stop):
                (command if place < len(words.command) else args).append(spelt[place])
        else:
            changed = map(spell, wanted[new:new_stop])
            (command if start < len(words.command) else args).extend(changed)
            if new < new_stop:
                replaced += (m[1] for word in spelt[start:stop] for m in _references(word))
    notes = [
        f"$({name}) is replaced by its value: what it is set to later is not seen"
        for name in dict.fromkeys(replaced)
        if _MARK.format(name) != variables.get(name)
    ]
    removed = tuple(_MARKED.sub(r"$(\1)", word.replace("$...", "\0")) for word in stripped.removed)
    return Rewritten(Words(tuple(command), tuple(args)), removed, (*stripped.notes, *notes))


def container_of(containers: Sequence[Manifest], name: str | None) -> Manifest:
    """The container of that name, without a name the one that starts vLLM.

    Raises ActuatorError unless that is exactly one.
    """
    names = ", ".join(container["name"] for container in containers)
    if name is not None:
        chosen = [container for container in containers if container["name"] == name]
        if not chosen:
            raise ActuatorError(f"it has no container {name}, but {names}: correct `container`")
        return chosen[0]
    chosen = [container for container in containers if _starts_vllm(container)]
    if len(chosen) != 1:
        which = "none of its containers" if not chosen else "more than one of its containers"
        raise ActuatorError(f"{which} starts vLLM ({names}): name one with `container`")
    return chosen[0]


def _starts_vllm(container: Manifest) -> bool:
    words = Words.of(container)
    return any("vllm" in word for word in (*words.command, *words.args, container["image"]))


def _references(word: str) -> list[re.Match[str]]:
    return [match for match in _REFERENCE.finditer(word) if match[1] is not None]


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """What the program gets for a word; a mark for each value that is not known."""

    def value_of(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return variables.get(match[1], _MARK.format(match[1]))

    return _REFERENCE.sub(value_of, word)
