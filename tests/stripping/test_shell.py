"""In the text of a shell only the words of speculation disappear, byte for byte."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.errors import CannotStrip
from specwatch.stripping import strip


def stripped(text: str) -> str:
    shell, option, result = strip(["bash", "-c", text]).command
    assert (shell, option) == ("bash", "-c")
    return result


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (
            "cd /srv && exec vllm serve \"$MODEL\" --spec-tokens 3 --port '8''0' 2>&1 | tee log",
            "cd /srv && exec vllm serve \"$MODEL\" --port '8''0' 2>&1 | tee log",
        ),
        (
            "vllm serve M \\\n  --port 1 \\\n  --spec-method ngram \\\n  --seed 2\n",
            "vllm serve M \\\n  --port 1 \\\n  --seed 2\n",
        ),
        ("vllm serve M \\\n  --spec-tokens=3 # why\n", "vllm serve M # why\n"),
        ("vllm serve M \\\n--spec-tokens 3 \\\n--seed 2", "vllm serve M \\\n--seed 2"),
        ('vllm serve M --speculative-config "{\\"method\\": \\"ngram\\"}"', "vllm serve M"),
        ("vllm serve M --speculative-config '{\"a\":'\"1}\" -tp 2", "vllm serve M -tp 2"),
        ('vllm serve M --speculative-config="$SPEC" -tp "${TP:-2}"', 'vllm serve M -tp "${TP:-2}"'),
        ("vllm serve M --spec-model \"$(cat 'a b')\" --seed \\1", "vllm serve M --seed \\1"),
        ("vllm serve M --spec\\-tokens 3", "vllm serve M"),
        ("vllm serve M --seed=\\  --spec-tokens 3 -x", "vllm serve M --seed=\\  -x"),
        ('vllm serve M "--spec-\\\ntokens" 3 --seed 1', "vllm serve M --seed 1"),
        ("A=$X B=`y` /opt/vllm serve M -sc {} & wait", "A=$X B=`y` /opt/vllm serve M & wait"),
        ("$HOME/vllm serve M -sc.k 1; echo vllm serve", "$HOME/vllm serve M; echo vllm serve"),
        ('"$PYTHON" -m vllm serve M -sc {} >>log <in', '"$PYTHON" -m vllm serve M >>log <in'),
        ("vllm serve M 2>err --spec-tokens >out 3 --seed 1", "vllm serve M 2>err >out --seed 1"),
        (
            "if true; then vllm serve M -sc {}; else vllm serve N --spec-tokens 3; fi",
            "if true; then vllm serve M; else vllm serve N; fi",
        ),
        ("{ (vllm serve M -sc {}) ; }", "{ (vllm serve M) ; }"),
        ("! vllm serve M -sc x # vllm serve it's", "! vllm serve M # vllm serve it's"),
        ("set -e\nexport A=$B\nvllm serve M -sc {}\n", "set -e\nexport A=$B\nvllm serve M\n"),
        ("bash -c 'vllm serve M -sc {} --port 1'", "bash -c 'vllm serve M --port 1'"),
        ("docker run -it vllm/vllm-openai M -sc {}", "docker run -it vllm/vllm-openai M"),
    ],
)  # fmt: skip
def test_the_rest_of_the_text_stays(text: str, result: str) -> None:
    assert stripped(text) == result
    assert stripped(result) == result


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vllm serve M $ARGS", "'$ARGS' may stand for several words"),
        ("vllm serve $MODEL --port 1", "put it in \"double quotes\""),
        ('vllm serve M "$@"', "may stand for several words"),
        ('vllm serve M "${ARGS[@]}"', "may stand for several words"),
        ("vllm serve M $(flags)", "may stand for several words"),
        ("vllm serve M `flags`", "may stand for several words"),
        ("vllm serve M --seed={1,2}", "may stand for several words"),
        ('vllm serve M --"$FLAG" 1', "a flag whose name is not known"),
        ("docker run $OPTIONS vllm/vllm-openai M", "may stand for several words"),
        ("vllm serve M $'--spec-tokens' 3", "use plain quotes"),
        ("vllm serve M 'a", "no closing '"),
        ('vllm serve M "a', 'no closing "'),
        ("vllm serve M $(a", "no closing )"),
        ("cat <<E\nE\nvllm serve M", "is not understood"),
        ("vllm serve M --spec-method <(x)", "is not understood"),
        ("./start.sh", "there is no `vllm serve` in the text"),
        ("bash -c \"vllm serve $M\"", "put together by another shell"),
        ("mine vllm serve M", "how 'mine' starts vLLM is not known"),
    ],
)  # fmt: skip
def test_what_may_hide_speculation_is_refused(text: str, why: str) -> None:
    with pytest.raises(CannotStrip) as refusal:
        stripped(text)
    assert why in str(refusal.value)


@pytest.mark.parametrize(
    "redirection",
    [
        "2>err",
        "2>>err",
        "0<in",
        ">out",
        "> o",
        ">  o",
        ">\to",
        "2>&1",
        "&>o",
        "<>o",
        ">|o",
        ">'a b'",
    ],
)
def test_a_redirection_between_a_flag_and_its_value_is_neither(redirection: str) -> None:
    text = f"vllm serve M --spec-tokens {redirection} 3 --seed 1"
    assert stripped(text) == f"vllm serve M {redirection} --seed 1"
    first = f"{redirection} vllm serve M --spec-tokens 3"
    assert stripped(first) == f"{redirection} vllm serve M"


@pytest.mark.parametrize(
    "expansion",
    [
        "$(a)", "${A}", "`a`", "$()", "``", "$(a b)", "`a b`", "${A:-b c}", "$A$B", "$(a\\))",
        "$(a '' b)", "$(a ')' b)", "$(a \")\" b)", "$(a; (b); c)", "$(a $(b) ${C} c)",
        "${A:-$(b '}' c)}", "$(a ${B:-)} c)", "${A:-(b}", "${A:-it's}", "$(a \"$(b \")\")\" c)",
        "$(a \"it's\" b)", "`a \"b c\" d`", "$((1 + (2)))", "$(f() { a; }; f)",
    ],
)  # fmt: skip
def test_an_expansion_in_double_quotes_is_one_word_whatever_is_in_it(expansion: str) -> None:
    for text in (f'"{expansion}"', f'"x{expansion}y"'):
        given = f"vllm serve M --spec-model {text} --key={text} -x"
        assert stripped(given) == f"vllm serve M --key={text} -x"
        assert stripped(f"A={text} vllm serve M -sc {{}} -x") == f"A={text} vllm serve M -x"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vllm serve M <(x)", "'<(' in the text of a shell is not understood:"),
        ("vllm serve M 'a b c d e f g h i j k", '"\'a b c d e f g h i j" in the text of a shell'),
    ],
)
def test_a_refusal_quotes_the_place(text: str, why: str) -> None:
    with pytest.raises(CannotStrip) as refusal:
        stripped(text)
    assert why in str(refusal.value)


OTHERS = st.text("ab1'\"\\ $#*~-=.,\n\t;&|<>(){}[]!`é", max_size=6)


def test_bash_reads_the_same_words_as_before_but_for_those_removed() -> None:
    """Whatever the quoting, bash itself is asked; once for all texts."""
    texts: list[str] = []
    results: list[str] = []
    expected: list[list[str]] = []

    @given(st.lists(OTHERS, min_size=1, max_size=4))
    def collect(values: list[str]) -> None:
        quotings = [shlex.quote, _double_quoted, _escaped]
        said = [quotings[at % 3](value) for at, value in enumerate(values)]
        texts.append(f"vllm serve M {' '.join(f'--key={word}' for word in said)}")
        results.append(
            stripped(texts[-1] + f" --spec-tokens 3 -x v{said[0]} --spec-model v{said[-1]}")
        )
        expected.append(
            ["serve", "M", *(f"--key={value}" for value in values), "-x", f"v{values[0]}"]
        )

    collect()
    script = "vllm() { printf '%s\\0' \"$@\"; printf '\\1\\0'; }\n" + "\n".join(results)
    done = subprocess.run(["bash"], input=script.encode(), capture_output=True, check=True)
    seen = [part.split("\0")[:-1] for part in done.stdout.decode().split("\1\0")[:-1]]
    assert seen == expected


def _double_quoted(word: str) -> str:
    return '"' + "".join(f"\\{c}" if c in '$`"\\' else c for c in word) + '"'


def _escaped(word: str) -> str:
    return "".join("'\n'" if c == "\n" else f"\\{c}" for c in word) or "''"
