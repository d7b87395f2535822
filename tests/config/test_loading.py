"""A configuration that is right is read whole, and tells no secret."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import platformdirs
import pytest

from specwatch.config.loading import (
    Config,
    ListenAddress,
    Target,
    default_database,
    from_targets,
    load,
    parse,
)
from specwatch.domain.model import PageLimits
from specwatch.errors import ConfigError
from specwatch.generate.systemd import units

DATA = Path(__file__).parents[1] / "data" / "config"


def full(folder: Path, **environ: str) -> Config:
    given = {"CREDENTIALS": str(folder), "SCOPE": "scope-hunter2", **environ}
    path = shutil.copy(DATA / "valid-full.yml", folder)
    return load(Path(path), environ=given, hostname="host")


def one(text: str, **environ: str) -> Config:
    return parse(text, "specwatch.yml", environ=environ, hostname="gpu-7")


def target(url: str, **keys: object) -> Target:
    document = json.dumps({"targets": [{"url": url, **keys}]})
    return one(document).targets[0]


def test_one_url_is_enough() -> None:
    config = load(
        DATA / "valid-least.yml",
        environ={"STATE_DIRECTORY": "/var/lib/specwatch:/var/lib/other"},
        hostname="gpu-7",
    )
    assert config.daemon == "gpu-7"
    assert config.database.connect_url() == "sqlite:////var/lib/specwatch/specwatch.db"
    assert config.listen == ListenAddress("127.0.0.1", 9469)
    (only,) = config.targets
    assert only.name == "gpu-7:8000"
    assert only.metrics_url == "http://127.0.0.1:8000/metrics"
    assert (only.interval, only.timeout, only.max_page_size) == (5.0, 4.0, 16 << 20)
    assert only.request_headers() == {}
    assert only.gpu_indices is None


def test_secrets_reach_their_place(folder: Path) -> None:
    config = full(folder)
    assert config.database.connect_url() == (
        "postgresql+psycopg://specwatch:p%40ss%2Fhunter2@db.example:5432/fleet?sslmode=require"
    )
    first, second = config.targets
    assert first.metrics_url == "https://vllm.example/chat/prometheus"
    assert (
        first.request_headers()
        == second.request_headers()
        == {
            "X-Scope": "scope-hunter2",
            "X-Cost": "a$b",
            "Authorization": "Bearer token-hunter2",
        }
    )
    assert (first.gpu_indices, second.gpu_indices) == ((0, 1), ())


def test_variables_come_from_the_given_environment_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER", "hidden")
    monkeypatch.setenv("QUEUE", "1")
    config = full(folder, OTHER="chat-13b", QUEUE="")
    assert config.targets[1].name == "chat-13b"
    assert config.store.queue_limit == 5000


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a${X}b", "a-x-b"),
        ("$${X}", "${X}"),
        ("$$$${X:-y}", "$${X:-y}"),
        ("cost $5", "cost $5"),
        ("${NONE:-}z", "z"),
        ("${NONE:-a:-b}", "a:-b"),
        ("${EMPTY:-y}", "y"),
        ("${EMPTY}z", "z"),
        ("${NESTED}", "${X}"),
    ],
)
def test_variables_are_put_in_once(written: str, read: str) -> None:
    text = json.dumps({"daemon": written, "targets": [{"url": "http://h"}]})
    assert one(text, X="-x-", EMPTY="", NESTED="${X}").daemon == read


def test_a_variable_does_not_turn_into_a_number() -> None:
    text = "daemon: ${ID}\ntargets: [{url: 'http://h', insecure_skip_verify: '${T}'}]"
    config = one(text, ID="7", T="true")
    assert config.daemon == "7"
    assert config.targets[0].insecure_skip_verify is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &hunter2 1\nb: &hunter2 2", "found duplicate anchor '***'; first occurrence"),
        ("a: !e!hunter2 x", "found undefined tag handle '***'"),
        ("a: [hunter2}", "expected ',' or ']', but got '}'"),
    ],
)
def test_messages_of_yaml_show_its_tokens_and_no_names(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        one(text)
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_words_and_dates_of_yaml_1_1_are_text() -> None:
    text = "daemon: 2024-01-01\ntargets: [{url: http://h, name: on}, {url: 'http://i', name: 1:30}]"
    config = one(text)
    assert config.daemon == "2024-01-01"
    assert [t.name for t in config.targets] == ["on", "1:30"]


@pytest.mark.parametrize("name", ["config/valid-full.yml", "guard/valid.yml", "report/valid.yml"])
def test_no_output_of_the_configuration_shows_a_secret(folder: Path, name: str) -> None:
    path = Path(shutil.copy(DATA.parent / name, folder))
    environ = {"CREDENTIALS": str(folder), "SCOPE": "scope-hunter2"}
    secretless(load(path, environ=environ, hostname="h"))


def test_a_password_in_a_variable_is_used_and_not_shown() -> None:
    text = "database: ${DB}\ntargets: [{url: 'http://h', headers: {K: hunter2}}]"
    config = one(text, DB="postgresql://u:hunter2@h/d?password=hunter2")
    url = "postgresql+psycopg://u:hunter2@h/d?password=hunter2"
    assert config.database.connect_url() == url
    secretless(config)


def secretless(config: Config) -> None:
    public = json.dumps(config.public())
    faces = [repr(config), str(config), public, str(config.model_dump()), config.database.shown()]
    for face in (*faces, config.model_dump_json()):
        assert "hunter2" not in face
    assert "***" in public


def test_the_public_configuration_has_the_syntax_of_the_file(folder: Path) -> None:
    public = full(folder).public()
    assert public["listen"] == "[::1]:9469"
    assert public["targets"][0]["interval"] == "10s"
    assert public["targets"][0]["max_page_size"] == "4MiB"
    assert public["targets"][0]["headers"] == {"X-Scope": "***", "X-Cost": "***"}
    assert public["retention"] == {"minutes": "7d", "hours": "90d"}
    assert public["database"]["url"] == (
        "postgresql+psycopg://specwatch@db.example:5432/fleet?sslmode=require"
    )


def test_a_secret_is_read_when_it_is_used(folder: Path) -> None:
    """A token that was rotated is used; one that has gone is an error that names its file."""
    first = full(folder).targets[0]
    (folder / "token").write_text("rotated")
    assert first.request_headers()["Authorization"] == "Bearer rotated"
    (folder / "token").unlink()
    with pytest.raises(ConfigError, match=r"target chat-70b: cannot read .*token: No such file"):
        first.request_headers()


def test_a_password_of_the_database_that_has_gone_is_an_error(folder: Path) -> None:
    database = full(folder).database
    (folder / "db-password").write_text("")
    with pytest.raises(ConfigError, match=r"database\.password_file: .* one line of text"):
        database.connect_url()


@pytest.mark.parametrize(
    ("url", "base", "name"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "gpu-7:8000"),
        ("http://localhost:8000/", "http://localhost:8000", "gpu-7:8000"),
        ("http://[::1]:8000/metrics", "http://[::1]:8000", "gpu-7:8000"),
        ("http://vllm:8000/metrics/", "http://vllm:8000", "vllm:8000"),
        ("http://VLLM", "http://vllm", "vllm:80"),
        ("HTTPS://vllm.example/chat/metrics", "https://vllm.example/chat", "vllm.example:443"),
        ("http://[2001:db8::7]:8000", "http://[2001:db8::7]:8000", "[2001:db8::7]:8000"),
        ("http://vllm/mymetrics", "http://vllm/mymetrics", "vllm:80"),
    ],
)
def test_a_target_is_named_for_its_url_and_never_loopback(url: str, base: str, name: str) -> None:
    named = target(url)
    assert (named.url, named.name) == (base, name)
    assert named.gpu_indices == (None if "gpu-7" in name else ())


@pytest.mark.parametrize(("interval", "timeout"), [("1s", 1.0), ("4s", 4.0), ("1m", 4.0)])
def test_the_default_timeout_fits_the_interval(interval: str, timeout: float) -> None:
    assert target("http://h", interval=interval).timeout == timeout


def test_targets_of_the_command_line_need_no_file() -> None:
    config = from_targets(
        ["http://127.0.0.1:8000", "http://vllm:8000/metrics"],
        environ={},
        hostname="gpu-7",
        settings={"listen": "127.0.0.1:0", "database": "sqlite:///specwatch.db"},
    )
    assert [t.name for t in config.targets] == ["gpu-7:8000", "vllm:8000"]
    assert config.listen.port == 0
    assert config.database.shown() == "sqlite:///specwatch.db"


def test_the_default_database_lies_in_the_users_state_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = from_targets(["http://h"], environ={}, hostname="gpu-7")
    assert config.database.connect_url() == f"sqlite:///{tmp_path}/specwatch/specwatch.db"


def test_the_service_and_a_shell_use_the_same_state_folder() -> None:
    def keeps(folder: str, **environ: str) -> tuple[str, Path]:
        text = "{targets: [{url: 'http://h'}], report: {}}"
        config = parse(text, "f", environ=environ, hostname="h", folder=Path(folder))
        assert config.report is not None
        return config.database.connect_url(), config.report.directory

    service = ("sqlite:////var/lib/specwatch/specwatch.db", Path("/var/lib/specwatch/reports"))
    unit = units()["specwatch.service"]
    assert "run --config /etc/specwatch/specwatch.yml\n" in unit
    assert "StateDirectory=specwatch\n" in unit
    assert keeps("/etc/specwatch", STATE_DIRECTORY="/var/lib/specwatch") == service
    assert keeps("/etc/specwatch") == service
    assert keeps("/home/me")[0] == default_database({}) != service[0]
    assert keeps("/etc/specwatch", STATE_DIRECTORY="/home/me/state")[1] == Path(
        "/home/me/state/reports"
    )


def test_the_service_needs_no_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user often has none."""

    def homeless(_: str) -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(platformdirs, "user_state_path", homeless)
    assert default_database({}, Path("/etc/specwatch")) == (
        "sqlite:////var/lib/specwatch/specwatch.db"
    )
    assert default_database({"STATE_DIRECTORY": "/state"}) == "sqlite:////state/specwatch.db"


def test_a_relative_path_of_a_configuration_is_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specwatch.yml").write_text("targets: [{url: 'http://h'}]")
    monkeypatch.setattr("specwatch.config.sections.SERVICE_FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    config = load(Path("specwatch.yml"), environ={}, hostname="h")
    assert config.database.connect_url() == "sqlite:////var/lib/specwatch/specwatch.db"
    config = from_targets(["http://h"], environ={}, hostname="h")
    assert config.database.connect_url() == default_database({})


def test_models_can_be_built_in_code() -> None:
    config = Config(
        daemon="d",
        database="sqlite:////var/lib/specwatch.db",
        targets=(Target(url="http://127.0.0.1:8000", interval="2s"),),
    )
    assert config.targets[0].name == "127.0.0.1:8000"
    assert config.targets[0].timeout == 2.0


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("", "http://127.0.0.1:9469"),
        ("listen: 0.0.0.0:9470", "http://gpu-7:9470"),
        ("listen: '[::]:9470'", "http://gpu-7:9470"),
        ("listen: '[fd00::1]:9470'", "http://[fd00::1]:9470"),
        ("listen: 0.0.0.0:9470\nexternal_url: https://Watch.example/x/", "https://watch.example/x"),
    ],
)
def test_the_external_url_is_where_it_listens_unless_given(text: str, url: str) -> None:
    config = parse(
        f"targets: [{{url: 'http://a:1'}}]\n{text}", "specwatch.yml", environ={}, hostname="gpu-7"
    )
    assert (config.external_url, config.runbook_url) == (url, f"{url}/runbook")


def test_allowed_hosts_are_host_names_without_port() -> None:
    text = "targets: [{{url: 'http://a:1'}}]\nallowed_hosts: [{}]"
    config = parse(text.format("GPU-7.example.com., '*.b.c', '*'"), "c", environ={}, hostname="h")
    assert config.allowed_hosts == ("gpu-7.example.com", "*.b.c", "*")
    for wrong in ("'a:9469'", "'http://a'", "''", "'a b'", "'*a'", "7"):
        with pytest.raises(ConfigError, match="not a host name without port; write it like"):
            parse(text.format(wrong), "c", environ={}, hostname="h")


def test_the_limits_of_a_page_are_those_of_its_target() -> None:
    """Under the names of Prometheus, and 0 for any number as there."""
    keys = "sample_limit: 0, label_limit: 30, label_name_length_limit: 40"
    text = f"targets: [{{url: http://a:1, {keys}, label_value_length_limit: 50}}]"
    (target,) = parse(text, "c", environ={}, hostname="h").targets
    assert target.page_limits == PageLimits(0, 30, 40, 50)
    (usual,) = from_targets(["http://a:1"], environ={}, hostname="h").targets
    assert usual.page_limits == PageLimits()
    with pytest.raises(ConfigError, match="label_limit: -1 is not a whole number of at least 0"):
        parse(text.replace("30", "-1"), "c", environ={}, hostname="h")


def test_a_proxy_is_a_server_beside_the_targets() -> None:
    assert target("http://h").proxy is None
    assert target("http://h", proxy="http://p:8001/metrics").proxy == "http://p:8001"


@pytest.mark.parametrize(
    ("proxy", "problem"),
    [
        ("p:8001", "does not begin with http://"),
        ("http://me:hunter2@p", "holds credentials"),
        ("http://h:80", "is the server's own url"),
    ],
)
def test_an_invalid_proxy_url_is_refused(proxy: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"proxy: .*{problem}") as caught:
        target("http://h:80", proxy=proxy)
    assert "hunter2" not in str(caught.value)
