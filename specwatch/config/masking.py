"""Secrets in the words of a command line, masked wherever they are shown or logged.

A secret is recognised by its name: ``--api-key``, ``HF_TOKEN``, ``"password":``;
under any name, by the form of the tokens that well-known services give out. A reference such as
``$KEY`` is not masked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from specwatch.domain.units import masked_url

MASK = "***"
_LEAST = 4
"""Characters of a value that is looked for by itself: a shorter one is in every other word."""
_NAME = re.compile(
    r"(?i)(?:^|[-_.])(?:key|token|secret|passwd|auth|authorization|credentials?)(?:$|[-_.])"
    r"|(?:key|token|passphrase)$|secret|passw"
)
_SHORTEST = ("--api-k", "--hf-t", "--ssl-keyfile-p")
"""How vLLM's own begin, which it takes abbreviated; the first takes several values."""
_TOKEN = re.compile(
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{16,}|sk-(?=[\w-]*\d)[\w-]{16,}|gh[opsru]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}|nvapi-[\w-]{16,}|xox[abprs]-[\w-]{16,}|AKIA[A-Z0-9]{16}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
"""Tokens of Hugging Face, OpenAI, GitHub, GitLab, NVIDIA, Slack and AWS, and JSON web tokens."""
_SHELL_TEXT = re.compile(r"-[a-z]*c")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_GIVEN = re.compile(r"(-{0,2}[A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_REFERENCE = re.compile(r"\$(\w+|\{\w+\}|\$.*)")
_NAMED = re.compile(
    r"""(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]*)"""
    r"""(?P<between>["']?[ \t]*:[ \t]*|["'][ \t]*,[ \t]*|=|[ \t]+)"""
)
_VALUE = re.compile(
    r"""(?!-)(?:(?:Bearer|Basic)[ ]+)?"""
    r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"';|&)]+(?:"[^"]*"|'[^']*'|[^\s"';|&)])*)"""
)
_CHUNK = re.compile(r"[^\s'\"]+")


def is_secret(name: str) -> bool:
    """Whether a flag, a variable or a key of that name has a secret for its value."""
    return name.replace("_", "-").startswith(_SHORTEST) or _NAME.search(name) is not None


def masked(words: Iterable[str]) -> tuple[str, ...]:
    """The words of a command line, with ``***`` in place of each secret."""
    result: list[str] = []
    expects = several = is_text = False
    for word in words:
        is_text, was_text = _SHELL_TEXT.fullmatch(word) is not None, is_text
        if expects and not word.startswith("-"):
            result.append(_hidden(word))
            expects = several
            continue
        expects = _FLAG.fullmatch(word) is not None and is_secret(word)
        several = expects and word.replace("_", "-").startswith(_SHORTEST[0])
        given = _GIVEN.fullmatch(word)
        if given and is_secret(given[1]) and not was_text:
            result.append(f"{given[1]}={_hidden(given[2])}")
        else:
            result.append(masked_text(word))
    return tuple(result)


def masked_text(text: str, secrets: Iterable[str] = ()) -> str:
    """A text, of a shell for example, without what is named as a secret in it.

    ``secrets`` are known values, which are masked wherever they stand.
    """
    for secret in sorted(set(secrets), key=len, reverse=True):
        text = text.replace(secret, MASK) if len(secret) >= _LEAST else text
    text = _CHUNK.sub(_masked_url, text)
    return _TOKEN.sub(MASK, _masked_pairs(text))


def secrets_in(words: Sequence[str], environment: Mapping[str, str | None]) -> frozenset[str]:
    """The values that are masked in ``words``, and those of variables that are named as secrets."""
    values = {value for name, value in environment.items() if value and is_secret(name)}
    for word, shown in zip(words, masked(words), strict=True):
        if shown.endswith(MASK) and word != shown:
            values.add(word.removeprefix(shown.removesuffix(MASK)))
    return frozenset(values)


def _hidden(value: str) -> str:
    return value if not value or _REFERENCE.fullmatch(value) else MASK


def _masked_url(chunk: re.Match[str]) -> str:
    text = chunk[0]
    return masked_url(text) if "://" in text and ("@" in text or "?" in text) else text


def _masked_pairs(text: str) -> str:
    pieces: list[str] = []
    position = 0
    for named in _NAMED.finditer(text):
        is_given = named["name"].startswith("-") or not named["between"].isspace()
        if named.start() < position or not (is_given and is_secret(named["name"])):
            continue
        if match := _VALUE.match(text, named.end()):
            value = match[0].strip("\"'")
            pieces += text[position : match.start()], match[0].replace(value, _hidden(value))
            position = match.end()
    return "".join([*pieces, text[position:]])
