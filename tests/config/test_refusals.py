"""A configuration that is wrong is refused, with all that is wrong, where, and the remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.config.loading import from_targets, load, parse
from specwatch.errors import ConfigError

DATA = Path(__file__).parents[1] / "data"
INVALID = sorted(DATA.glob("*/invalid-*.yml"))
"""Each beside a file with what is wrong in it."""


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "specwatch.yml", environ={}, hostname="gpu-7")
    return str(caught.value)


@pytest.mark.parametrize("path", INVALID, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_invalid_file_is_refused_with_each_problem_on_its_line(path: Path, folder: Path) -> None:
    copy = Path(shutil.copy(path, folder))
    with pytest.raises(ConfigError) as caught:
        load(copy, environ={}, hostname="gpu-7")
    message = str(caught.value).replace(str(copy), "FILE").replace(str(folder), "FOLDER")
    expected = path.with_suffix(".txt").read_text().splitlines()
    assert message.splitlines() == [f"FILE:{line}" for line in expected]
    assert "hunter2" not in message


def test_a_file_that_cannot_be_opened_says_which_and_what_to_do(folder: Path) -> None:
    absent = folder / "absent.yml"
    with pytest.raises(ConfigError, match="No such file or directory; create it, or correct"):
        load(absent, environ={}, hostname="gpu-7")
    with pytest.raises(ConfigError, match="Is a directory; name a file"):
        load(folder, environ={}, hostname="gpu-7")
    absent.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load(absent, environ={}, hostname="gpu-7")


def test_a_secret_of_a_broken_file_does_not_show() -> None:
    for text in (
        "targets: [{url: http://h, headers: {K: *hunter2}}]",
        "a: &hunter2 1\nb: &hunter2 1\nheaders: !hunter2!x y",
        "targets: [{url: http://h, headers: {K: !hunter2 x}}]",
        "targets: [{url: http://h, headers: {K: [hunter2]}}]",
        "targets: [{url: 'http://hunter2@h'}]",
        "targets: [{url: 'hunter2:hunter2@h'}]",
        "database: [postgresql://u:hunter2@h/d]",
        "database: {url: 'postgresql://u:hunter2@x@h/d'}",
        "database: {url: 'postgresql://u:hunter2:x@h/d', password: hunter2}",
    ):
        assert "hunter2" not in refusal(text)


@given(st.text(alphabet="ab:{}[]-#&*!|>'\"%@` \n\t,?<$\\0.~", max_size=40))
def test_any_file_is_a_configuration_or_a_clear_refusal(text: str) -> None:
    assert refusal(text).startswith("specwatch.yml:")


def test_each_problem_stays_on_one_line() -> None:
    assert refusal('targets: [{url: "http://h"}]\n"a\\nb": 1').splitlines() == [
        'specwatch.yml:2: "a\\nb": unknown key; known here: daemon, database, shard, listen,'
        " listen_token_file, external_url, allowed_hosts, temperature_buckets, discovery, targets,"
        " rules, slos, guard, alertmanager, otlp, report, baseline, retention, log, store"
    ]


def test_a_wrong_url_on_the_command_line_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        from_targets(["http://h", "h:1"], environ={}, hostname="gpu-7")
    assert str(caught.value) == (
        'command line: targets[1].url: "h:1" does not begin with http:// or https://;'
        ' write "http://h:1"'
    )
