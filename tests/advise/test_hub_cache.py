"""Models of a hub are found where the hub's own library keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from specwatch.edges import hub_cache


def cached(cache: Path, name: str = "Qwen/Qwen3-8B") -> Path:
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    return folder


PLACES = {
    "HF_HUB_CACHE": ("", "HF_HUB_CACHE"),
    "its older name": ("", "HUGGINGFACE_HUB_CACHE"),
    "HF_HOME": ("hub", "HF_HOME"),
    "XDG_CACHE_HOME": ("huggingface/hub", "XDG_CACHE_HOME"),
    "HOME": (".cache/huggingface/hub", "HOME"),
}


@pytest.mark.parametrize(("below", "variable"), PLACES.values(), ids=PLACES.keys())
def test_the_environment_says_where_the_cache_is(tmp_path: Path, below: str, variable: str) -> None:
    folder = cached(tmp_path / below)
    assert hub_cache.find("Qwen/Qwen3-8B", {variable: str(tmp_path)}) == folder


def test_the_nearer_variable_counts(tmp_path: Path) -> None:
    environ = {"HF_HUB_CACHE": str(tmp_path / "a"), "HF_HOME": str(tmp_path / "b")}
    assert hub_cache.cache_folder(environ) == tmp_path / "a"


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    assert hub_cache.find("Qwen/Qwen3-8B", environ) is None
    (tmp_path / "models--a--b").mkdir()
    assert hub_cache.find("a/b", environ) is None, "nothing downloaded yet"
    cached(tmp_path, "gpt2")
    assert hub_cache.find("gpt2", environ) == tmp_path / "models--gpt2"


@pytest.mark.parametrize("home", ["~nouser/x", "a\0b", "x" * 5000])
def test_a_cache_that_can_be_nowhere_has_nothing(home: str) -> None:
    assert hub_cache.find("Qwen/Qwen3-8B", {"HF_HOME": home}) is None


@pytest.mark.parametrize("name", ["", "../x", "a/../b", "a/b/c", "/a", "a\0b", "x" * 500, "-x"])
def test_names_that_no_hub_has_are_not_looked_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "snapshots" / "abc").mkdir(parents=True)
    assert hub_cache.find(name, {"HF_HUB_CACHE": str(tmp_path / "models--a")}) is None
