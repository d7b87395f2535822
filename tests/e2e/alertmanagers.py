"""A real Alertmanager that tests start, stop and ask."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.e2e.api import get
from tests.e2e.conftest import unavailable
from tests.e2e.running import RunningServer
from tests.lab.vllm_server import free_port

CONFIG = """
route: {receiver: nobody}
receivers: [{name: nobody}]
"""


class RunningAlertmanager(RunningServer):
    """One on a free port, in a folder of its own; can be stopped and started again.

    ``config`` is the text of its configuration.
    """

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
        if program is None:
            unavailable("no Alertmanager is installed (Debian: prometheus-alertmanager)")
        folder.mkdir(parents=True, exist_ok=True)
        url = f"http://127.0.0.1:{free_port()}"
        file = folder / "alertmanager.yml"
        file.write_text(config)
        command = [
            program,
            f"--config.file={file}", f"--storage.path={folder}/data",
            f"--web.listen-address={url.removeprefix('http://')}",
            "--cluster.listen-address=",
        ]  # fmt: skip
        super().__init__(folder, url, command)

    def alerts(self) -> dict[str, dict[str, Any]]:
        """The alerts that fire, by name, as it tells them."""
        status, body = get(f"{self.url}/api/v2/alerts")
        assert status == 200, body
        return {alert["labels"]["alertname"]: alert for alert in json.loads(body)}
