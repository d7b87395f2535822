"""The measured server: by URL, or by its name in the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specwatch.cli.load import known_target, measured_target, prompts
from specwatch.config.loading import parse
from specwatch.config.target import Target
from specwatch.errors import ConfigError

URL = "http://127.0.0.1:8000"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text("of the file\n")
    (tmp_path / "other").write_text("of the option\n")
    config = {
        "targets": [
            {"name": "chat", "url": URL, "bearer_token_file": f"{tmp_path}/key"},
            {"name": "code", "url": "http://127.0.0.1:8001"},
        ],
    }
    server = tmp_path / "specwatch.yml"
    server.write_text(json.dumps(config))
    return server


def target(name: str, **more: Any) -> Target:
    return measured_target({"target": name, "file": None, "bearer_token_file": None} | more)


def key(server: Target) -> str | None:
    return server.request_headers().get("Authorization")


@pytest.mark.parametrize("name", ["chat", URL, URL + "/"])
def test_a_target_of_the_configuration_has_its_name_and_key(file: Path, name: str) -> None:
    server = target(name, file=file)
    assert (server.name, server.url, key(server)) == ("chat", URL, "Bearer of the file")


def test_a_key_of_the_command_line_comes_first(file: Path, tmp_path: Path) -> None:
    server = target("chat", file=file, bearer_token_file=tmp_path / "other")
    assert (server.name, key(server)) == ("chat", "Bearer of the option")


def test_any_other_url_is_a_separate_target(file: Path) -> None:
    server = target("http://10.0.0.1:9", file=file)
    assert (server.name, key(server)) == ("10.0.0.1:9", None)


def test_an_unknown_name_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match='has no "cha"; it has chat, code'):
        target("cha", file=file)
    with pytest.raises(ConfigError, match='"chat" is not a URL, and no configuration'):
        target("chat")
    with pytest.raises(ConfigError, match="--target: "):
        target("ftp://h")


def test_only_line_feeds_end_a_prompt(tmp_path: Path) -> None:
    """Line separators of Unicode may be part of a prompt, as JSON allows."""
    file = tmp_path / "prompts"
    file.write_bytes('one\r\n\n"a\u2028b\\nc"\n d\u0085e\x0bf\x0cg \n'.encode())
    assert prompts(file) == ("one", "a\u2028b\nc", " d\u0085e\x0bf\x0cg ")
    file.write_text('fine\n\n"never ends\n')
    with pytest.raises(ConfigError, match=":3: begins with a quote and is not a JSON string"):
        prompts(file)
    file.write_text(" \r\n\n")
    with pytest.raises(ConfigError, match="is empty"):
        prompts(file)


def test_a_discovered_target_is_known_by_its_name(tmp_path: Path) -> None:
    listed = tmp_path / "targets.json"
    listed.write_text('[{"targets": ["10.0.0.7:8000"], "labels": {"instance": "chat"}}]')
    text = (
        "targets: [{name: own, url: 'http://127.0.0.1:1'}]\n"
        f"discovery: [{{file_sd: {{files: ['{listed}']}}}},"
        " {http_sd: {url: 'http://127.0.0.1:1'}}]"
    )
    config = parse(text, "f", environ={}, hostname="h")
    target = known_target(config, "chat", [])
    assert target is not None
    assert target.url == "http://10.0.0.7:8000"
    assert known_target(config, None, ["http://10.0.0.7:8000"]) == target
    with pytest.raises(ConfigError) as refused:
        known_target(config, "chart", [])
    assert str(refused.value) == (
        '--target: the configuration has no "chart"; it has own, chat; nothing listens at'
        " http://127.0.0.1:1; is the server up, on this port?"
    )
