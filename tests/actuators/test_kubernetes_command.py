"""Commands of containers are rewritten without speculation, or refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from specwatch.actuators.kubernetes.container_command import (
    Manifest,
    Words,
    container_of,
    variables_of,
    without_speculation,
)
from specwatch.errors import ActuatorError, CannotStrip

NGRAM = '{"method": "ngram", "num_speculative_tokens": 3}'
SPECULATION = ["--speculative-config", NGRAM]
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
KEY = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "api"}}}
CONFIG_MAPS = {"settings": {"SPEC": NGRAM, "MORE": f"--seed 7 --speculative-config '{NGRAM}'"}}


def container(**parts: Any) -> dict[str, Any]:
    return {"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", **parts}


def config_map(reference: Manifest) -> Mapping[str, str]:
    return CONFIG_MAPS[reference["name"]]


def rewritten(
    command: list[str], args: list[str], **parts: Any
) -> tuple[list[str], list[str], tuple[str, ...]]:
    """The command and the args that are left, and the notes."""
    spec = container(command=command, args=args, **parts)
    result = without_speculation(spec, variables_of(spec, config_map))
    assert result.removed
    return list(result.words.command), list(result.words.args), result.notes


def refusal(command: list[str], args: list[str], **parts: Any) -> str:
    with pytest.raises(CannotStrip) as refused:
        rewritten(command, args, **parts)
    return str(refused.value)


@pytest.mark.parametrize(
    ("command", "args", "command_left", "args_left"),
    [
        ([], ["tiny", *SPECULATION, "--port", "80"], [], ["tiny", "--port", "80"]),
        ([], ["--model", "tiny", *SPECULATION], [], ["--model", "tiny"]),
        (["vllm", "serve", "tiny"], SPECULATION, ["vllm", "serve", "tiny"], []),
        (
            ["vllm", "serve", "tiny", *SPECULATION],
            ["--seed", "7"],
            ["vllm", "serve", "tiny"],
            ["--seed", "7"],
        ),
        (
            ["python3", "-m", "vllm.entrypoints.openai.api_server"],
            ["--model", "m", *SPECULATION],
            ["python3", "-m", "vllm.entrypoints.openai.api_server"],
            ["--model", "m"],
        ),
        (
            ["sh", "-c"],
            [f"exec vllm serve tiny --speculative-config '{NGRAM}' --seed 7"],
            ["sh", "-c"],
            ["exec vllm serve tiny --seed 7"],
        ),
        (
            ["sh", "-c", f"vllm serve tiny --speculative-config '{NGRAM}'"],
            [],
            ["sh", "-c", "vllm serve tiny"],
            [],
        ),
    ],
)
def test_flags_of_speculation_go_wherever_they_are(
    command: list[str], args: list[str], command_left: list[str], args_left: list[str]
) -> None:
    assert rewritten(command, args) == (command_left, args_left, ())


def test_references_to_variables_stay_as_they_are_written() -> None:
    args = ["tiny", "--host", "$(POD_IP)", "--api-key", "$(KEY)", "--seed", "$(SEED)", "--x=$$(X)"]
    env = [POD_IP, KEY, {"name": "SEED", "value": "7"}]
    assert rewritten([], [*args, *SPECULATION], env=env) == ([], args, ())


@pytest.mark.parametrize(
    "parts",
    [
        {"env": [{"name": "SPEC", "value": NGRAM}]},
        {"env": [{"name": "BASE", "value": NGRAM}, {"name": "SPEC", "value": "$(BASE)"}]},
        {
            "env": [
                {
                    "name": "SPEC",
                    "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "SPEC"}},
                }
            ]
        },
        {"envFrom": [{"configMapRef": {"name": "settings"}}]},
        {"env": [{"name": "SPEC", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
    ],
)
def test_value_of_speculation_may_come_from_anywhere(parts: dict[str, Any]) -> None:
    args = ["tiny", "--speculative-config", "$(SPEC)", "--seed", "7"]
    assert rewritten([], args, **parts) == ([], ["tiny", "--seed", "7"], ())


def test_flag_in_a_variable_is_found() -> None:
    args = ["tiny", "$(SPEC)"]
    env = [{"name": "SPEC", "value": f"--speculative-config={NGRAM}"}]
    assert rewritten([], args, env=env) == ([], ["tiny"], ())


def test_text_for_a_shell_keeps_what_only_the_node_knows() -> None:
    text = f"""exec vllm serve tiny --host $(POD_IP) --key "$KEY" --speculative-config '{NGRAM}'"""
    assert rewritten(["sh", "-c"], [text], env=[POD_IP, KEY]) == (
        ["sh", "-c"],
        ['exec vllm serve tiny --host $(POD_IP) --key "$$KEY"'],
        (),
    )


def test_text_for_a_shell_gets_the_values_of_a_config_map_with_a_note() -> None:
    source = [{"configMapRef": {"name": "settings"}}]
    command, args, notes = rewritten(["sh", "-c", "vllm serve tiny $(MORE)"], [], envFrom=source)
    assert (command, args) == (["sh", "-c", "vllm serve tiny --seed 7"], [])
    assert notes == ("$(MORE) is replaced by its value: what it is set to later is not seen",)


@pytest.mark.parametrize(
    ("command", "args", "reason"),
    [
        (["/start.sh"], SPECULATION, "in the command: give the one that starts the server"),
        (
            ["sh", "-c"],
            [f"ray start; vllm serve m --speculative-config '{NGRAM}'"],
            "';' in the text for a shell is more than one plain command",
        ),
        (
            ["sh", "-c"],
            ["vllm serve m --spec-method ngram --seed $(KEY)"],
            'cannot be read here and may be several words: write "$KEY" in double quotes',
        ),
        ([], ["m", "--config", "/etc/vllm/config.yaml"], "write its settings out as flags"),
        ([], ["m", *SPECULATION, "--seed", "7", "&&", "true"], "is for a shell, not"),
    ],
)
def test_what_is_uncertain_is_refused(command: list[str], args: list[str], reason: str) -> None:
    message = refusal(command, args, env=[KEY])
    assert message.startswith("container vllm: ")
    assert reason in message


def test_refusal_hides_secrets() -> None:
    text = "vllm serve m --spec-method ngram --api-key hunter2-hunter2 ; true"
    assert "hunter2" not in refusal(["sh", "-c"], [text])


def test_without_speculation_nothing_is_changed() -> None:
    spec = container(args=["tiny", "--seed", "$(X)"])
    result = without_speculation(spec, variables_of(spec, config_map))
    assert (result.words, result.removed) == (Words.of(spec), ())


def test_config_maps_are_read_only_if_a_word_names_a_variable() -> None:
    def unreadable(reference: Manifest) -> Mapping[str, str]:
        raise AssertionError(reference)

    source = [{"configMapRef": {"name": "settings"}}]
    assert variables_of(container(args=["tiny"], envFrom=source), unreadable) == {}


def test_value_of_a_secret_replaces_that_of_a_config_map() -> None:
    secret = {"name": "SPEC", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "spec"}}}
    source = [{"configMapRef": {"name": "settings"}}]
    spec = container(args=["$(SPEC)"], envFrom=source, env=[secret])
    assert "SPEC" not in variables_of(spec, config_map)


def test_prefix_of_a_config_map_is_part_of_the_name() -> None:
    sources = [{"secretRef": {"name": "k"}}, {"prefix": "A_", "configMapRef": {"name": "settings"}}]
    spec = container(args=["$(A_SPEC)"], envFrom=sources)
    assert variables_of(spec, config_map)["A_SPEC"] == NGRAM
    # A Secret that comes later may have the same name.
    spec = container(args=["$(A_SPEC)"], envFrom=sources[::-1])
    assert variables_of(spec, config_map) == {}


POD = yaml.safe_load("""
- {name: proxy, image: envoy, args: [--port, "80"]}
- {name: server, image: registry/vllm-openai, args: [tiny]}
""")


def test_container_of_vllm_is_found_by_image_or_command() -> None:
    assert container_of(POD, None)["name"] == "server"
    other = [POD[0], {"name": "own", "image": "ours", "command": ["vllm", "serve"]}]
    assert container_of(other, None)["name"] == "own"
    assert container_of(POD, "proxy")["name"] == "proxy"


@pytest.mark.parametrize(
    ("containers", "name", "reason"),
    [
        (POD, "vllm", "no container vllm, but proxy, server"),
        (POD[:1], None, r"none of its containers starts vLLM \(proxy\): name one"),
        (
            [POD[1], {**POD[1], "name": "second"}],
            None,
            "more than one .* name one with `container`",
        ),
    ],
)
def test_container_that_is_uncertain_is_refused(
    containers: list[dict[str, Any]], name: str | None, reason: str
) -> None:
    with pytest.raises(ActuatorError, match=reason):
        container_of(containers, name)


def test_words_are_shown_without_secrets() -> None:
    words = Words(("vllm", "serve"), ("tiny", "--api-key", "hunter2"))
    assert "hunter2" not in json.dumps(words.shown())
