"""A configuration that is wrong is refused, with all that is wrong, where, and the remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.config.loading import from_targets, load, parse
from specwatch.errors import ConfigError

DATA = Path(__file__).parents[1] / "data" / "config"
SQLITE_OR_POSTGRES = "write sqlite:////path/to/file.db or postgresql+psycopg://USER@HOST/NAME"

INVALID = {
    "alias": [
        "1: an alias (*NAME) has no anchor (&NAME); in quotes, a value may begin with *",
    ],
    "control": ["2: the character U+0001 cannot stand in YAML; remove it"],
    "database-at-sign": [
        "1: database: has no valid host and port; percent-encode / @ : in its password,"
        " or move the password to password_file",
    ],
    "database-mapping": [
        '1: database.url: is missing; add it, like "url:'
        ' postgresql+psycopg://specwatch@db.example/fleet"',
        "2: database.password_file: cannot read FOLDER/absent: No such file or directory;"
        " create it, or correct the path",
    ],
    "database-memory": [f"1: database.url: names no database file; {SQLITE_OR_POSTGRES}"],
    "database-no-url": [f"1: database: is not a database URL; {SQLITE_OR_POSTGRES}"],
    "database-password": [
        "1: database: has no valid host and port; percent-encode / @ : in its password,"
        " or move the password to password_file",
    ],
    "database-scheme": [
        f'1: database: "mysql" is not a database that specwatch knows; {SQLITE_OR_POSTGRES}',
    ],
    "database-two-passwords": [
        "3: database.password_file: the URL has a password too; remove one of them",
    ],
    "deep": [" is nested too deeply"],
    "documents": ["2: a second document begins here; keep one, without ---"],
    "duplicate-keys": [
        "5: targets[0].url: given on line 3 and again on line 5; keep one",
        "6: listen: given on line 1 and again on line 6; keep one",
    ],
    "durations": [
        '3: targets[0].interval: 5 has no unit; write "5s" for seconds, or use ms, m, h, d',
        "6: targets[1].timeout: 10s is longer than the interval 5s; make it at most 5s",
        "8: targets[2].interval: 500ms is outside 1s to 1m, the length of a window",
        '10: targets[3].interval: "five seconds" is not a duration;'
        " write it like 500ms, 5s, 30m, 1h30m or 14d",
        "12: targets[4].interval: 1m30s is outside 1s to 1m, the length of a window",
        "13: targets[4].timeout: 1ms is too short; make it at least 100ms",
        "16: retention.hours: 7d is shorter than minutes, 30d; make it at least 30d",
    ],
    "empty": [" is empty; list at least one server to watch under targets"],
    "header-name": [
        '3: targets[0].headers: "X Scope" is not a header name; use letters, digits and -',
    ],
    "indent": [
        "3: not valid YAML: while parsing a block collection,"
        " expected <block end>, but found '<block mapping start>'",
    ],
    "items": [
        "2: targets[0]: expected a mapping of keys to values, found text",
        "5: targets[1].headers.X-Scope: expected text, found a number; put it in quotes",
        '7: targets[2].url: is missing; add it, like "url: http://127.0.0.1:8000"',
    ],
    "latin1": ["2: the byte 0xe9 is not UTF-8; save the file as UTF-8"],
    "laughs": [" holds too many values once its aliases are followed"],
    "list": ["1: expected a mapping of keys to values, found a list"],
    "listen-port": [
        '1: listen: "127.0.0.1:99999" has a port above 65535; choose one from 0 to 65535',
        "2: targets: is empty; list at least one server to watch",
    ],
    "missing-targets": [
        "2: targets: is missing; add it, like \"targets: [{url: 'http://127.0.0.1:8000'}]\"",
    ],
    "names": [
        '6: targets[2].name: "chat" is the name of targets[0] too; give another',
        '8: targets[3].name: "gpu-7:8001" is the name of targets[1] too; give another',
    ],
    "no-value": [
        "1: database: has no value; give it one or remove it",
        "3: targets[0].url: has no value; give it one or remove it",
        '4: targets[0].interval: 10 has no unit; write "10s" for seconds, or use ms, m, h, d',
    ],
    "recursion": ["1: targets[0]: is an alias of what it stands in; write the value out"],
    "same-url": ['3: targets[1]: "gpu-7:8000" is the name of targets[0] too; give another'],
    "api-url": [
        '2: targets[0].url: "http://h:8000/v1" is where the API begins; give the server\'s,'
        " http://h:8000",
        '4: targets[1].proxy: "http://h:8001/v1" is where the API begins; give the server\'s,'
        " http://h:8001",
    ],
    "scalars": [
        '1: daemon: "gpu\\u00077" has a control character; use printable ones only',
        '2: listen: ":9469" has no host; write 127.0.0.1:9469 for this machine only,'
        " 0.0.0.0:9469 for every network",
        "3: temperature_buckets: [0, 0.7, 0.3] does not ascend; sort the edges, each once",
        '5: targets[0].url: "127.0.0.1:8000" does not begin with http:// or https://;'
        ' write "http://127.0.0.1:8000"',
        '6: targets[0].max_page_size: 16777216 has no unit; write "16777216B" for bytes,'
        " or use kB, MiB, GiB",
        '7: targets[0].metrics_path: "metrics" is not a plain path; write it like /metrics',
        "8: targets[0].gpus: [0, 0] names a GPU twice; list each once",
        "9: targets[0].insecure_skip_verify: expected true or false, found text",
        '10: targets[1].url: "ftp://127.0.0.1" does not begin with http:// or https://',
        "11: targets[1].max_page_size: 2GiB is outside 1KiB to 1GiB",
        '12: targets[1].gpus: "all" is not auto, none or a list of GPU indices, like [0, 1]',
        '13: targets[2].url: "http://127.0.0.1:80000" has no valid host and port',
        "14: targets[2].name: 8000 is not text; put it in quotes",
        '15: targets[2].max_page_size: "lots" is not a size;'
        " write it like 16MiB, 500kB or 4096B",
        "17: retention.minutes: 1h is too short to roll up whole hours; keep at least 2h",
        "19: log.level: \"verbose\" is none of 'debug', 'info', 'warning' or 'error'",
        "20: log.format: [\"json\"] is none of 'auto', 'json' or 'console'",
        "22: store.queue_limit: 0 is not a whole number of at least 1",
    ],
    "secrets": [
        "2: targets[0].url: holds credentials; move them to basic_auth",
        "3: targets[0].bearer_token_file: cannot read FOLDER/absent: No such file or directory;"
        " create it, or correct the path",
        "4: targets[1].url: has a query or fragment; give the server's base URL only",
        "6: targets[1].bearer_token_file: Authorization is given too;"
        " keep one way to authorize",
        "9: targets[2].basic_auth: bearer_token_file is given too; keep one way to authorize",
        "11: targets[3].headers: the value of X-Scope has characters that no header may have",
        "12: targets[3].basic_auth.username: a user name has no colon and no control character",
        "12: targets[3].basic_auth.password_file: cannot read FOLDER: Is a directory;"
        " name a file",
        "14: targets[4].headers: expected a mapping of keys to values, found text",
        "15: targets[4].bearer_token_file: FOLDER/two-lines does not hold one line of text;"
        " write the secret as one line",
        "17: targets[4].ca_file: has no effect beside insecure_skip_verify: true;"
        " remove one of them",
    ],
    "shapes": [
        "1: database: expected a URL, or a mapping of url and password_file",
        "2: targets: expected a list, found a mapping",
        "4: log: expected a mapping of keys to values, found text",
    ],
    "syntax": [
        "3: not valid YAML: while scanning a quoted scalar, found unexpected end of stream",
    ],
    "tab": ["2: a tab stands where YAML wants spaces; indent with spaces"],
    "tags": [
        "2: targets[0].url: has a tag (!NAME); in quotes, a value may begin with !",
        "3: targets[1]: has a key that is not text",
        "5: targets[2]: << takes a mapping",
    ],
    "unknown-keys": [
        '1: databse: unknown key; did you mean "database"?',
        '4: targets[0].intervall: unknown key; did you mean "interval"?',
        '5: targets[0].basic_auth.username: is missing; add it, like "username: specwatch"',
        "5: targets[0].basic_auth.password_file: is missing;"
        ' add it, like "password_file: /run/credentials/password"',
        '6: targets[0].basic_auth.user: unknown key; did you mean "username"?',
        "7: retention.days: unknown key; known here: minutes, hours",
        "8: grafana: unknown key; known here: daemon, database, listen, listen_token_file,"
        " allowed_hosts, temperature_buckets, targets, rules, slos, guard, alertmanager, report,"
        " baseline, retention, log, store",
    ],
    "variables": [
        "1: database: the environment variable DB_PASSWORD is not set;"
        " set it, or write ${DB_PASSWORD:-default}",
        "3: targets[0].url: the environment variable HOST is not set;"
        " set it, or write ${HOST:-default}",
        "3: targets[0].url: the environment variable PORT is not set;"
        " set it, or write ${PORT:-default}",
        "4: targets[0].name: ${ begins no ${NAME}; write $$ for a plain dollar",
    ],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the configurations of tests/data and the files that they name."""
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    (tmp_path / "token").write_text("token-hunter2\n")
    (tmp_path / "db-password").write_text("p@ss/hunter2\n")
    (tmp_path / "two-lines").write_text("hunter2\nhunter2\n")
    (tmp_path / "ca.pem").write_text("certificate")
    return tmp_path


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "specwatch.yml", environ={}, hostname="gpu-7")
    return str(caught.value)


def test_every_invalid_file_is_in_the_table() -> None:
    assert {path.stem for path in DATA.glob("invalid-*.yml")} == {f"invalid-{n}" for n in INVALID}


@pytest.mark.parametrize("name", sorted(INVALID))
def test_an_invalid_file_is_refused_with_each_problem_on_its_line(name: str, folder: Path) -> None:
    path = folder / f"invalid-{name}.yml"
    with pytest.raises(ConfigError) as caught:
        load(path, environ={}, hostname="gpu-7")
    lines = str(caught.value).splitlines()
    expected = [f"{path}:{line.replace('FOLDER', str(folder))}" for line in INVALID[name]]
    assert lines == expected
    assert "hunter2" not in str(caught.value).replace(str(folder), "")


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
        'specwatch.yml:2: "a\\nb": unknown key; known here: daemon, database, listen,'
        " listen_token_file, allowed_hosts, temperature_buckets, targets, rules, slos, guard,"
        " alertmanager, report, baseline, retention, log, store"
    ]


def test_a_wrong_url_on_the_command_line_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        from_targets(["http://h", "h:1"], environ={}, hostname="gpu-7")
    assert str(caught.value) == (
        'command line: targets[1].url: "h:1" does not begin with http:// or https://;'
        ' write "http://h:1"'
    )
