"""Where vLLM's own words begin in a command line: behind env, numactl, sh -c or docker run.

Whatever starts vLLM, all words after ``vllm serve`` are vLLM's. Only the arguments of a shell or a
container need parsing. A shell's text is read if it is one plain command: words, quotes and
``"$NAME"``. Sources: "Shell Command Language" of POSIX.1-2017, sections 2.2 and 2.3; the reference
of ``docker container run`` (Docker 28), podman-run(1) (Podman 5).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from specwatch.errors import CannotStrip

SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
VARIABLE_MARK = "\0"
"""In place of a shell variable's value; no word of a program can contain it."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_VLLM = re.compile(r"vllm(@.*)?")
_SERVER_MODULES = frozenset(
    {"vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.api_server.entry"}
)
_COMMAND_MODULES = frozenset({"vllm", "vllm.entrypoints.cli.main"})
_MODULE_OPTION = re.compile(r"-[A-Za-z]*m|--module")
_IN_ONE_WORD = re.compile(r"vllm\S*\s+serve\b|-m\s+vllm")

_SAME_FOLDER = re.compile(
    r"env|exec|nohup|nice|ionice|numactl|taskset|chrt|stdbuf|timeout|setsid"
    r"|(ba|da|a|k|z)?sh|(python|pypy)[\d.]*|vllm"
)
"""Programs that start another one in their own folder, unless an option names one."""
_OTHER_FOLDER = re.compile(r"-C|--chdir")
_ENGINES = frozenset({"docker", "podman", "nerdctl"})
_ELSEWHERE = _ENGINES | {
    "kubectl",
    "oc",
    "ssh",
    "chroot",
    "nsenter",
    "apptainer",
    "singularity",
    "srun",
}
_RUN_WITH_VALUE = (
    "--name -e --env --env-file --gpus --device -v --volume --mount --tmpfs -p --publish --ipc"
    " --shm-size --network --net --ulimit --runtime --restart -u --user -w --workdir --entrypoint"
    " -h --hostname -l --label --log-driver --log-opt -m --memory --memory-swap --cpus -c"
    " --cpu-shares --cpuset-cpus --cpuset-mems --cap-add --cap-drop --security-opt --group-add"
    " --pull --platform --add-host --dns --pid --userns --stop-timeout --stop-signal --pod"
    " --secret --health-cmd --health-interval --health-retries --health-timeout"
    " --health-start-period --annotation --sysctl --cidfile --conmon-pidfile --cgroup-parent"
    " --cgroupns --cgroups --label-file --authfile --arch --os --ip --link --volumes-from"
    " --device-cgroup-rule --dns-search --memory-reservation --cpu-period --cpu-quota --pids-limit"
    " --blkio-weight --isolation --requires --uidmap --gidmap --subuidname --subgidname --tz"
    " --umask --env-merge --hooks-dir --image-volume --log-level --mac-address --network-alias"
    " --personality --preserve-fds --rootfs --sdnotify --seccomp-policy --shm-size-systemd"
    " --systemd --timeout --variant --domainname --expose --storage-opt --gpu"
)
"""Options of docker run, podman run and nerdctl run that take a value."""
_RUN_SWITCHES = (
    "-d --detach -i --interactive -t --tty --rm --init --privileged --read-only -P --publish-all"
    " --no-healthcheck -q --quiet --replace --sig-proxy --oom-kill-disable --env-host --http-proxy"
    " --no-hosts --no-hostname --passwd --read-only-tmpfs --rmi --tls-verify --use-api-socket"
    " --disable-content-trust"
)
_IMAGE = re.compile(r"[a-z0-9][\w.:/@-]*")
"""A reference to an image: no value with a comma, an equals sign or a blank is one."""
_IMAGE_OF_VLLM = re.compile(r"(.*/)?vllm[^/]*", re.IGNORECASE)
"""Images that start `vllm serve` with the arguments that they get."""
_INTERPRETER = re.compile(r"(python|pypy)[\d.]*")

_SHELL_OPTION = re.compile(r"[-+][A-Za-z]+|--(login|norc|noprofile|posix)")
_TEXT_OPTION = re.compile(r"-[A-Za-z]*c[A-Za-z]*")
_NAMES_AN_OPTION = re.compile(r"[-+][A-Za-z]*[oO]")
_SEPARATOR = re.compile(r"(?:\\\n)*[ \t](?:[ \t]|\\\n)*")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")
_TEXT_WORD = re.compile(
    r"""(?: [^\s'"\\$`;&|<>(){}*?\[\]#!]       # no character with a meaning for a shell
          | \\[^\n]
          | '[^']*'
          | "(?: [^"\\$`] | \\["\\] | \$[A-Za-z_]\w* | \$\{[A-Za-z_]\w*\} )*"
        )+""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Location:
    """vLLM's own words in a command; ``serve``: they are those of ``vllm serve``, not its module's.

    ``elsewhere`` is the program that runs vLLM in another file system, if one does.
    ``relative_paths``: vLLM runs in the folder of the command.
    """

    command: tuple[str, ...]
    words: tuple[str, ...]
    serve: bool
    elsewhere: str | None
    relative_paths: bool
    start: int
    """Of vLLM's own words, among those of the command or of the text in it."""
    image: str = ""
    """An image that is not known to start vLLM, and whose own program gets the words."""
    text_at: int | None = None
    """The place of the one word that is a text for a shell."""

    def changed(self, dropped: Set[int], inserted: Mapping[int, Sequence[str]]) -> tuple[str, ...]:
        """The command without some of vLLM's words, by place, and with others before a place.

        In a text for a shell, words keep their quotes; what separates them becomes one blank.
        """
        words = list(self.command)
        if self.text_at is not None:
            words = [quoted for _, quoted in _text_words(words[self.text_at])]
            inserted = {place: [shlex.quote(w) for w in new] for place, new in inserted.items()}
        changed = words[: self.start]
        for place in range(len(self.words) + 1):
            changed += inserted.get(place, ())
            if place < len(self.words) and place not in dropped:
                changed.append(words[self.start + place])
        if self.text_at is None:
            return tuple(changed)
        text = " ".join(changed)
        return (*self.command[: self.text_at], text, *self.command[self.text_at + 1 :])


def locate(command: Sequence[str]) -> Location:
    """Where vLLM's own words are. Raises CannotStrip if that is uncertain."""
    start = _start(command)
    if start is None:
        raise CannotStrip(
            "there is no `vllm serve` or plain `llama-server` in the command: give the one that"
            " starts the server"
        )
    words, before = command, command[: start.at]
    if start.text_at is not None:
        words = text_words(command[start.text_at])
        before = [*command[: start.text_at], *words[: start.at]]
    programs = [program_of(word) for word in before if not _ASSIGNMENT.fullmatch(word)]
    return Location(
        command=tuple(command),
        words=tuple(words[start.at :]),
        serve=start.serve,
        elsewhere=next((name for name in programs if name in _ELSEWHERE), None),
        relative_paths=all(map(_SAME_FOLDER.fullmatch, programs[:1]))
        and not any(map(_OTHER_FOLDER.match, before)),
        start=start.at,
        image=start.image,
        text_at=start.text_at,
    )


def shell_text_place(words: Sequence[str], index: int) -> int:
    """The place of the text that the shell at the place ``index`` runs: ``sh -c TEXT``.

    Raises CannotStrip if it runs a script, or has other options.
    """
    is_text, place = False, index + 1
    while place < len(words) and (option := words[place])[:1] in ("-", "+"):
        if not _SHELL_OPTION.fullmatch(option):
            break
        is_text = is_text or bool(_TEXT_OPTION.fullmatch(option))
        # The name of an option follows: -o pipefail, -euo pipefail.
        place += 2 if _NAMES_AN_OPTION.fullmatch(option) else 1
    if is_text and place < len(words):
        return place
    raise CannotStrip(
        f"{program_of(words[index])} does not run one text with -c: give the plain command that it"
        " runs"
    )


def text_words(text: str) -> list[str]:
    """The words of the one plain command that a shell's text is.

    Raises CannotStrip if it is more than that.
    """
    return [value for value, _ in _text_words(text)]


def _text_words(text: str) -> list[tuple[str, str]]:
    """The words of a shell's text: as the program gets them, and as they are quoted."""
    words: list[tuple[str, str]] = []
    index = len(text) - len(text.lstrip())
    while text[index:].strip():
        word = _TEXT_WORD.match(text, index)
        if word is None:
            raise CannotStrip(
                f"{text[index]!r} in the text for a shell is more than one plain command: give the"
                ' plain command that starts vLLM; a variable is read as "$NAME" in double quotes'
            )
        words.append((shlex.split(_VARIABLE.sub(VARIABLE_MARK, word[0]))[0], word[0]))
        separator = _SEPARATOR.match(text, word.end())
        index = separator.end() if separator else word.end()
    return words


def program_of(word: str) -> str:
    """The name of a program without its folder."""
    return word.rpartition("/")[2]


def spelt(word: str) -> str:
    """A word for a message."""
    return repr(word.replace(VARIABLE_MARK, "$..."))


class _Start(NamedTuple):
    """The place of vLLM's first own word: in the command, or in the text at ``text_at``."""

    at: int
    serve: bool = True
    text_at: int | None = None
    image: str = ""


def _start(words: Sequence[str], first: int = 0) -> _Start | None:
    """Where vLLM's own words begin, if one of the words from ``first`` on starts it."""
    for index in range(first, len(words)):
        word, following = words[index], [*words[index + 1 : index + 3], "", ""]
        program = program_of(word)
        if _ASSIGNMENT.fullmatch(word):
            continue
        if program in SHELLS:
            text_at = shell_text_place(words, index)
            start = _start(text_words(words[text_at]))
            if start is not None and start.text_at is not None:
                raise CannotStrip(
                    "a shell starts another shell: give the plain command that the inner one runs"
                )
            return start and start._replace(text_at=text_at)
        if program in _ENGINES and (options_at := _run_options_at(words, index + 1)):
            return _start_in_container(words, options_at)
        if _VLLM.fullmatch(program) and following[0] == "serve":
            return _Start(index + 2)
        if _MODULE_OPTION.fullmatch(word) and following[0] in _SERVER_MODULES:
            return _Start(index + 2, serve=False)
        if _MODULE_OPTION.fullmatch(word) and following[0] in _COMMAND_MODULES:
            if following[1] == "serve":
                return _Start(index + 3)
        elif _IN_ONE_WORD.search(word):
            # The word may hold secrets.
            raise CannotStrip(
                "`vllm serve` and its flags are one word after"
                f" {spelt(''.join(words[:index][-1:]))}: give the plain command,"
                " without quotes around it all"
            )
    return None


def _start_in_container(words: Sequence[str], options_at: int) -> _Start | None:
    image, entrypoint = _image(words, options_at)
    name = "" if _IMAGE_OF_VLLM.fullmatch(words[image]) else words[image]
    if entrypoint:
        return _start([*words[:image], entrypoint, *words[image + 1 :]], image)
    first = "".join(words[image + 1 : image + 2])
    is_vllm = entrypoint is None and "vllm" in words[image]
    if entrypoint is None and (first.startswith("-") or (is_vllm and len(words) == image + 1)):
        return _Start(image + 1, image=name)
    if entrypoint is None and first == "serve":
        return _Start(image + 2)
    start = _start(words, image + 1)
    # Otherwise the first argument of vLLM's own image is the model.
    if start is None and is_vllm and not _INTERPRETER.fullmatch(first):
        return _Start(image + 1, image=name)
    return start


def _run_options_at(words: Sequence[str], index: int) -> int | None:
    """The place after ``run`` behind the engine's own options; None for another command of it."""
    while index < len(words) and words[index].startswith("-"):
        index += 1
        following = "".join(words[index : index + 1])
        if following not in ("", "run", "container") and not following.startswith("-"):
            index += 1  # an option's value: docker --context gpu1 run
    if words[index : index + 1] == ["run"]:
        return index + 1
    return index + 2 if words[index : index + 2] == ["container", "run"] else None


def _image(words: Sequence[str], index: int) -> tuple[int, str | None]:
    """The place of the image after ``docker run``, and the ``--entrypoint`` before it."""
    entrypoint = None
    while index < len(words) and words[index].startswith("-"):
        option, equals, value = words[index].partition("=")
        if not option.startswith("--"):
            # Several letters, of which the last may have a value: -it, -itp 80:80, -eA=b.
            letters = words[index][1:].lstrip("ditPq")
            option, value = f"-{letters[:1]}", letters[1:]
            equals = value
        index += 1
        if option in ("-", *_RUN_SWITCHES.split()):
            continue
        known = option in _RUN_WITH_VALUE.split() or (equals and option.startswith("--"))
        if not known and _is_switch(option, words, index):
            continue
        if not equals:
            value = "".join(words[index : index + 1])
            index += 1
        if option == "--entrypoint":
            entrypoint = value
    if index >= len(words):
        raise CannotStrip("docker run has no image: give the whole command")
    return index, entrypoint


def _is_switch(option: str, words: Sequence[str], index: int) -> bool:
    """Whether an option of docker run that is not known takes no value, by what follows at a place:
    another option, the image, or what cannot be one. Raises CannotStrip if that is uncertain."""
    following, *more = [*words[index : index + 2], ""]
    if following.startswith("-"):
        return True
    if not _IMAGE.fullmatch(following):
        return False
    is_image, is_value = (bool(_IMAGE_OF_VLLM.fullmatch(word)) for word in (following, more[0]))
    if is_image is is_value:
        raise CannotStrip(
            f"it is unknown whether {option} of docker run takes a value: write it as"
            " --NAME=VALUE, or leave it out"
        )
    return is_image
