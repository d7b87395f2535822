"""Of a shell's text one plain command is read; of its words only those of speculation go."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.errors import CannotStrip
from specwatch.vllm_cli import strip


def stripped(text: str) -> str:
    shell, option, result = strip(["bash", "-c", text]).command
    assert (shell, option) == ("bash", "-c")
    return result


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (
            "exec vllm serve \"$MODEL\" --spec-tokens 3 --port '8''0' --api-key \"${KEY}\"",
            "exec vllm serve \"$MODEL\" --port '8''0' --api-key \"${KEY}\"",
        ),
        (
            "  vllm serve M \\\n  --port 1 \\\n  --spec-method ngram \\\n  --seed 2\n",
            "vllm serve M --port 1 --seed 2",
        ),
        ("vllm serve M \\\n--spec-tokens 3 \\\n--seed 2", "vllm serve M --seed 2"),
        ('vllm serve M --speculative-config "{\\"method\\": \\"ngram\\"}"', "vllm serve M"),
        ('vllm serve M --speculative-config \'{"a":\'"1}" -tp 2', "vllm serve M -tp 2"),
        ('vllm serve M --speculative-config="$SPEC" -tp 2', "vllm serve M -tp 2"),
        ("vllm serve M --spec\\-tokens 3", "vllm serve M"),
        ("vllm serve M --seed=\\  --spec-tokens 3 -x", "vllm serve M --seed=\\  -x"),
        ('A="$X" "$PYTHON" -m vllm serve M -sc x', 'A="$X" "$PYTHON" -m vllm serve M'),
    ],
)
def test_the_rest_of_the_text_stays(text: str, result: str) -> None:
    assert stripped(text) == result
    assert stripped(result) == result


def test_a_shell_variable_is_named_as_one() -> None:
    text = 'vllm serve M --spec-model "$DRAFT"'
    assert strip(["sh", "-c", text]).removed == ("--spec-model", "$...")


@pytest.mark.parametrize(
    "text",
    [
        "cd /srv && exec vllm serve M",
        "vllm serve M; true",
        "vllm serve M\ntrue",
        "vllm serve M & wait",
        "vllm serve M 2>&1 | tee log",
        "vllm serve M >log",
        "vllm serve M>>log",
        "vllm serve M|tee",
        "vllm serve M --spec-tokens <in 3",
        "vllm serve M <(x)",
        "cat <<E\nE\nvllm serve M",
        "(vllm serve M)",
        "{ vllm serve M; }",
        "vllm serve M # why",
        "vllm serve M $ARGS",
        "vllm serve $MODEL",
        'vllm serve M "$@"',
        'vllm serve M "${ARGS[@]}"',
        'vllm serve "${MODEL:-m}"',
        'vllm serve "$(cat model)"',
        "vllm serve M `flags`",
        "vllm serve M --seed={1,2}",
        "vllm serve M --spec-tok*",
        "vllm serve M $'--spec-tokens' 3",
        "vllm serve M --spec\\\n-tokens 3\\\n--seed 1",
        "vllm serve M 'a",
        'vllm serve M "a',
        "vllm serve M \\",
        'vllm serve M "a\\$b"',
        "sh -c 'vllm serve M'",
        'sh -c "exec bash -c \'vllm serve \\"M\\"\'"',
    ],
)
def test_more_than_one_plain_command_is_refused(text: str) -> None:
    """Redirections, pipes, lists, expansions, and a shell in a shell with its nested quotes."""
    with pytest.raises(CannotStrip, match="give the plain command"):
        stripped(text)


def test_a_flag_whose_name_is_a_shell_variable_is_refused() -> None:
    with pytest.raises(CannotStrip, match="a flag whose name only the shell knows"):
        stripped('vllm serve M --"$FLAG" 1')


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", "vllm serve M --api-key sk-0123456789; true"],
        ["env", "-S", "vllm serve M --api-key sk-0123456789"],
    ],
)
def test_a_refusal_does_not_quote_the_text(command: list[str]) -> None:
    """It may have secrets, and half a secret would not be recognised as one."""
    with pytest.raises(CannotStrip) as refusal:
        strip(command)
    assert "sk-" not in str(refusal.value)


OTHERS = st.text("ab1'\"\\ $#*~-=.,\t;&|<>(){}[]!`é", max_size=6)


def test_bash_reads_the_same_words_as_before_but_for_those_removed() -> None:
    """However they are quoted, bash itself is asked; once for all texts."""
    results: list[str] = []
    expected: list[list[str]] = []

    @given(st.lists(OTHERS, min_size=1, max_size=4))
    def collect(values: list[str]) -> None:
        quotings = (shlex.quote, _escaped)
        keys = " ".join(
            f"--key={quotings[number % 2](value)}" for number, value in enumerate(values)
        )
        removed = f"--spec-tokens 3 -x v --spec-model v{_escaped(values[-1])}"
        results.append(stripped(f"vllm serve M {keys} {removed}"))
        expected.append(["serve", "M", *(f"--key={value}" for value in values), "-x", "v"])

    collect()
    script = "vllm() { printf '%s\\0' \"$@\"; printf '\\1\\0'; }\n" + "\n".join(results)
    done = subprocess.run(["bash"], input=script.encode(), capture_output=True, check=True)
    words = [part.split("\0")[:-1] for part in done.stdout.decode().split("\1\0")[:-1]]
    assert words == expected


def _escaped(word: str) -> str:
    return "".join(f"\\{letter}" for letter in word) or "''"
