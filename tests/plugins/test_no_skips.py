"""In CI nothing is skipped silently; elsewhere a skip stays a skip."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

HIDDEN_TESTS = """
import pytest

def test_skipped():
    pytest.skip("no database")

@pytest.mark.skip(reason="no database")
def test_skip_mark():
    pass

@pytest.fixture
def database():
    pytest.skip("no database")

def test_fixture_that_skips(database):
    pass

@pytest.mark.xfail(reason="no database")
def test_expected_failure():
    assert False

@pytest.mark.xfail(reason="no database")
def test_unexpected_pass():
    pass
"""
HIDDEN_MODULES = {
    "test_skipped_module": "import pytest\npytest.skip('no database', allow_module_level=True)",
    "test_lacks_import": "import pytest\npytest.importorskip('no_such_module')",
}


def run(pytester: pytest.Pytester) -> pytest.RunResult:
    return pytester.runpytest_inprocess(
        "-p", "tests.plugins.no_skips", "--continue-on-collection-errors"
    )


def test_in_ci_whatever_hides_a_missing_part_fails_and_says_why(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile(test_hidden=HIDDEN_TESTS, **HIDDEN_MODULES)
    result = run(pytester)
    # A skip before the test's own call counts as an error, and so does that of a module.
    result.assert_outcomes(failed=3, errors=4)
    for name in ("skipped", "skip_mark", "fixture_that_skips"):
        result.stdout.fnmatch_lines([f"*::test_{name} was skipped; in CI nothing may be:*"])
    for name in ("expected_failure", "unexpected_pass"):
        result.stdout.fnmatch_lines(
            [f"*::test_{name} was marked as expected to fail (no database*"]
        )
    for name in HIDDEN_MODULES:
        result.stdout.fnmatch_lines([f"*{name}.py was skipped; in CI nothing may be:*"])


def test_outside_ci_they_stay_what_they_are(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    pytester.makepyfile(test_hidden=HIDDEN_TESTS, **HIDDEN_MODULES)
    run(pytester).assert_outcomes(skipped=5, xfailed=1, xpassed=1)


def test_in_ci_a_test_that_passes_passes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    pytester.makepyfile("def test_it(): pass")
    run(pytester).assert_outcomes(passed=1)
