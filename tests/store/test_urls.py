"""A database URL that cannot be used is refused with what was expected, without its password."""

from __future__ import annotations

import pytest

from specwatch.errors import ConfigError
from specwatch.store.database import Database, parse_url


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a database URL"),
        ("specwatch.db", "not a database URL"),
        ("postgresql://me:sesame@host:port/x", "not a database URL"),
        ("mysql://me:sesame@host/x", "mysql is not supported"),
        ("postgresql+asyncpg://me:sesame@host/x", r"postgresql\+asyncpg is not supported"),
        ("sqlite://", "without a file"),
        ("sqlite:///:memory:", "without a file"),
        ("sqlite:///file:x?uri=true", "without a file"),
    ],
)
def test_an_unusable_url_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_url(text)
    assert "expected sqlite:////absolute/path/file.db or postgresql://" in str(caught.value)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_name_of_postgres_means_the_driver_that_we_use(scheme: str) -> None:
    assert parse_url(f"{scheme}://host/x").drivername == "postgresql+psycopg"


def test_a_missing_driver_is_installed_for_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"python\S* -m pip install 'psycopg\[binary\]'$"):
        Database("postgresql://host/x")


def test_limits_in_the_url_win() -> None:
    assert Database("postgresql://host/x?connect_timeout=9").engine.url.query == {
        "connect_timeout": "9"
    }
