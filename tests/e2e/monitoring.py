"""A real Prometheus and a real Alertmanager that tests start, stop and query."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.dashboards.prometheus import PrometheusApi
from tests.e2e.conftest import unavailable
from tests.e2e.processes import HttpServer
from tests.lab.http_get import page
from tests.lab.vllm_server import free_port

CONFIG = """
route: {receiver: nobody}
receivers: [{name: nobody}]
"""


class _MonitoringServer(HttpServer):
    """Listens on a free port, keeps its files in its own folder; starts when it is ready."""

    ready_path = "/-/ready"

    def __init__(self, folder: Path, names: Sequence[str], config: str, *flags: str) -> None:
        program = next((path for name in names if (path := shutil.which(name))), None)
        if program is None:
            unavailable(f"no {names[-1]} is installed (Debian: {names[0]})")
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yml").write_text(config)
        super().__init__(
            folder / "log",
            program,
            f"--config.file={folder}/config.yml",
            f"--web.listen-address={address}",
            *flags,
        )

    def start(self) -> None:
        """Start it, and return when it answers."""
        super().start()
        self.wait_ready()


class RunningAlertmanager(_MonitoringServer):
    """``config`` is the text of its configuration."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        names = ("prometheus-alertmanager", "alertmanager")
        flags = (f"--storage.path={folder}/data", "--cluster.listen-address=")
        super().__init__(folder, names, config, *flags)

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that it has, whether active or suppressed."""
        alerts: list[dict[str, Any]] = json.loads(page(f"{self.url}/api/v2/alerts"))
        return alerts


class RunningPrometheus(_MonitoringServer, PrometheusApi):
    """A Prometheus that scrapes ``jobs``, URLs by the name of their job.

    ``rule_files`` are the texts of rule files by their names, ``alertmanagers`` the URLs that get
    its alerts. ``interval`` is that of scrapes and of rules, in seconds. Of the samples it stores
    those with the names ``kept``, or all.
    """

    def __init__(
        self,
        folder: Path,
        jobs: Mapping[str, Sequence[str]],
        *,
        rule_files: Mapping[str, str] | None = None,
        alertmanagers: Sequence[str] = (),
        interval: float = 1.0,
        kept: Collection[str] = (),
    ) -> None:
        keep = {"source_labels": ["__name__"], "regex": "|".join(kept), "action": "keep"}
        relabelling = [keep] if kept else []
        seconds = f"{interval * 1000:.0f}ms"
        config = {
            "global": {
                "scrape_interval": seconds,
                "scrape_timeout": seconds,
                "evaluation_interval": seconds,
            },
            "scrape_configs": [
                {
                    "job_name": job,
                    "static_configs": [_addresses(urls)],
                    "metric_relabel_configs": relabelling,
                }
                for job, urls in jobs.items()
            ],
            "rule_files": list(rule_files or {}),
            "alerting": {"alertmanagers": [{"static_configs": [_addresses(alertmanagers)]}]},
        }
        flags = (f"--storage.tsdb.path={folder}/data", "--rules.alert.resend-delay=1s")
        # JSON is YAML.
        super().__init__(folder, ("prometheus",), json.dumps(config, indent=2), *flags)
        for name, text in (rule_files or {}).items():
            (folder / name).write_text(text)

    def rules(self) -> list[dict[str, Any]]:
        """All rules of all groups, with their health and their last error."""
        return [rule for group in self.ask("rules", {})["groups"] for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are pending or fire: labels, annotations, state."""
        alerts: list[dict[str, Any]] = self.ask("alerts", {})["alerts"]
        return alerts

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        return {
            alert["labels"]["alertname"] for alert in self.alerts() if alert["state"] == "firing"
        }


def _addresses(urls: Sequence[str]) -> dict[str, list[str]]:
    return {"targets": [urlsplit(url).netloc for url in urls]}
