"""``specwatch check-config`` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cli.test_check_config import written

IMPORTS = """
import sys, threading
class Finder:
    def find_spec(name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print("IMPORTED", name)
sys.meta_path.insert(0, Finder)
from specwatch.cli import main
main()
"""


def test_the_threads_that_ask_import_nothing_of_requests(tmp_path: Path) -> None:
    """Two threads that import a module at the same time sometimes get an ImportError."""
    file = written(
        tmp_path,
        f"database: sqlite:///{tmp_path}/history.db\n"
        "targets: [{url: 'http://127.0.0.1:1', service: {kind: systemd, unit: a.service}}]\n"
        "alertmanager: {urls: ['http://127.0.0.1:1', 'http://127.0.0.1:2']}\n"
        f"report: {{directory: {tmp_path}, webhooks: [{{kind: json, url: 'http://127.0.0.1:1'}}]}}\n",
    )
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTS, "check-config", "--config", file],
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "webhook webhook: FAILED: nothing listens" in ran.stdout
    late = [line for line in ran.stdout.splitlines() if line.startswith("IMPORTED")]
    assert not [line for line in late if "requests" in line or "urllib3" in line]
