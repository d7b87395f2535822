"""The tap runs where only vLLM is installed."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, msgspec, prometheus_client
before = set(sys.modules)
import specwatch.tap
print(*(set(sys.modules) - before), sep="\\n")
"""
OURS = {
    "specwatch",
    "specwatch.domain",
    "specwatch.engines",
    "specwatch.domain.draft_lengths",
    "specwatch.domain.model",
    "specwatch.engines.acceptance",
    "specwatch.engines.base",
    "specwatch.engines.switch",
    "specwatch.engines.switch_files",
    "specwatch.engines.tap",
    "specwatch.engines.vllm",
    "specwatch.domain.segments",
    "specwatch.domain.temperature",
}


def test_importing_the_tap_loads_nothing_that_vllm_does_not_bring() -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT], stdout=subprocess.PIPE, text=True, check=True
    )
    loaded = set(ran.stdout.split())
    assert "specwatch.tap.middleware" in loaded
    ours = {module for module in loaded if module.partition(".")[0] == "specwatch"}
    assert {one for one in ours if not one.startswith("specwatch.tap")} == OURS
    assert not ours & {"specwatch.tap.proxy", "specwatch.tap.upstream"}
    others = {module.partition(".")[0] for module in loaded - ours}
    assert others <= sys.stdlib_module_names | {"msgspec", "prometheus_client"}
