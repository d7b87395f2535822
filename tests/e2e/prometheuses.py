"""A real Prometheus that tests start, stop and ask."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from tests.e2e.api import get
from tests.e2e.conftest import unavailable
from tests.e2e.running import RunningServer
from tests.lab.vllm_server import free_port


class RunningPrometheus(RunningServer):
    """One on a free port, in a folder of its own; can be stopped and started again.

    ``jobs`` are the URLs to scrape by the name of their job, ``rule_files`` the texts of rule files
    by their names, ``alertmanagers`` the URLs that hear of alerts. ``interval`` is that of scrapes
    and of rules, in seconds.
    """

    def __init__(
        self,
        folder: Path,
        jobs: Mapping[str, Sequence[str]],
        *,
        rule_files: Mapping[str, str] | None = None,
        alertmanagers: Sequence[str] = (),
        interval: float = 1.0,
    ) -> None:
        program = shutil.which("prometheus")
        if program is None:
            unavailable("no Prometheus is installed (Debian: prometheus)")
        folder.mkdir(parents=True, exist_ok=True)
        url = f"http://127.0.0.1:{free_port()}"
        for name, text in (rule_files or {}).items():
            (folder / name).write_text(text)
        config = folder / "prometheus.yml"
        written = _config(jobs, list(rule_files or {}), alertmanagers, interval)
        config.write_text(json.dumps(written, indent=2))  # JSON is YAML
        command = [
            program,
            f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={url.removeprefix('http://')}",
            "--rules.alert.resend-delay=1s",
        ]  # fmt: skip
        super().__init__(folder, url, command)

    def query(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """The series of an instant query (at Unix seconds, else now), as the API gives them."""
        found: list[dict[str, Any]] = self._ask(
            "query", {"query": expr} | ({} if at is None else {"time": at})
        )["result"]
        return found

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The series of a range query, in Unix seconds, as the API gives them."""
        asked = {"query": expr, "start": start, "end": end, "step": step}
        found: list[dict[str, Any]] = self._ask("query_range", asked)["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """All rules of all groups, with ``group``, their health and their last error."""
        groups = self._ask("rules", {})["groups"]
        return [rule | {"group": group["name"]} for group in groups for rule in group["rules"]]

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are pending or fire: labels, annotations, state."""
        found: list[dict[str, Any]] = self._ask("alerts", {})["alerts"]
        return found

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        return {
            alert["labels"]["alertname"] for alert in self.alerts() if alert["state"] == "firing"
        }

    def targets(self) -> list[dict[str, Any]]:
        """What it scrapes, with its health and last error."""
        found: list[dict[str, Any]] = self._ask("targets", {})["activeTargets"]
        return found

    def _ask(self, what: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        status, body = get(f"{self.url}/api/v1/{what}?{urlencode(asked)}")
        assert status == 200, f"{asked}: {body}"
        found: dict[str, Any] = json.loads(body)["data"]
        return found


def _config(
    jobs: Mapping[str, Sequence[str]],
    rule_files: Sequence[str],
    alertmanagers: Sequence[str],
    interval: float,
) -> dict[str, Any]:
    seconds = f"{interval * 1000:.0f}ms"
    return {
        "global": {
            "scrape_interval": seconds,
            "scrape_timeout": seconds,
            "evaluation_interval": seconds,
        },
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [_place(url) for url in urls]}]}
            for job, urls in jobs.items()
        ],
        "rule_files": list(rule_files),
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [_place(u) for u in alertmanagers]}]}]
        },
    }


def _place(url: str) -> str:
    return urlsplit(url).netloc
