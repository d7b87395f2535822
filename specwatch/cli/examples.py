"""Examples of command lines, which the help of each command ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EXAMPLES: Mapping[str, Sequence[str]] = {
    "": (
        "demo",
        "run --target http://127.0.0.1:8000",
        "status",
    ),
    "run": (
        "run --target http://127.0.0.1:8000",
        "run --config /etc/specwatch/specwatch.yml",
        "run --target http://127.0.0.1:8000 -- vllm serve MODEL --port 8000",
    ),
    "demo": ("demo", "demo --duration 60"),
    "simulate": (
        "simulate --port 8000",
        "simulate --simulated-rate 2 --simulated-acceptance-scale 0.3",
    ),
    "scrape": (
        "scrape http://127.0.0.1:8000",
        "scrape saved-metrics.prom.gz --json",
    ),
    "status": (
        "status",
        "status --url http://127.0.0.1:9469",
        "status --config /etc/specwatch/specwatch.yml --json",
    ),
    "backfill": (
        "backfill --prometheus http://127.0.0.1:9090 --dry-run",
        "backfill --prometheus http://127.0.0.1:9090 --since 30d",
        "backfill --prometheus http://thanos:9090 --selector '{job=\"vllm\"}'",
    ),
    "report": (
        "report",
        "report --since 30d --target chat-70b -o report.html",
        "report --since 2026-11-01 --until 2026-11-08 --format md",
    ),
    "probe": (
        "probe --target http://127.0.0.1:8000",
        "probe --target chat-70b --temperatures 0,0.7,1 --requests 50",
        "probe --target chat-70b --prompts prompts.txt --dry-run",
        "probe --target chat-70b --compare http://127.0.0.1:8001",
    ),
    "calibrate": (
        "calibrate --off http://127.0.0.1:8001 --target chat-70b",
        "calibrate --off http://127.0.0.1:8001 --on http://127.0.0.1:8000",
        "calibrate --import bench.json --target chat-70b",
    ),
    "bench": (
        "bench --target http://127.0.0.1:8000 -o on.json",
        "bench --target chat-70b --baseline http://127.0.0.1:8001",
        "bench --target chat-70b --rate 0.5,1,2 --dataset sharegpt.json",
    ),
    "bench compare": (
        "bench compare off.json on.json --plot speedup.svg",
        "bench compare both.json new-draft.json",
        "bench compare 12 15",
    ),
    "advise": (
        "advise --model 70B --draft 8B --gpus 2 --gpu-memory 80GB",
        "advise --temperature 0.9 -- vllm serve M -tp 4 -sc '{...}'",
        "advise -- llama-server -m T.gguf -md D.gguf --spec-draft-n-max 16",
    ),
    "check-config": (
        "check-config",
        "check-config --config specwatch.yml --offline",
        "check-config --target http://127.0.0.1:8000",
    ),
    "strip": (
        "strip -- vllm serve MODEL --speculative-config '{...}'",
        "strip --json -- docker run vllm/vllm-openai --model M -sc '{...}'",
    ),
    "generate": (
        "generate dashboards -o /var/lib/grafana/dashboards/specwatch",
        "generate alerts --config /etc/specwatch/specwatch.yml",
        "generate systemd --executable /opt/specwatch/bin/specwatch",
    ),
    "generate dashboards": (
        "generate dashboards -o /var/lib/grafana/dashboards/specwatch",
        "generate dashboards --check",
    ),
    "generate alerts": (
        "generate alerts -o /etc/prometheus/rules --job specwatch",
        "generate alerts --config /etc/specwatch/specwatch.yml --check",
    ),
    "generate kubernetes": (
        "generate kubernetes -o deploy",
        "generate kubernetes --external-url https://specwatch.example.com",
    ),
    "generate systemd": (
        "generate systemd -o /etc/systemd/system",
        "generate systemd --executable /opt/specwatch/bin/specwatch --gpu",
    ),
    "generate reference": ("generate reference --check",),
    "rules": ("rules list", "rules test --since 24h --rule net-negative"),
    "rules list": ("rules list", "rules list --config specwatch.yml --json"),
    "rules test": (
        "rules test --since 7d",
        "rules test --since 24h --target chat-70b --rule net-negative",
    ),
    "guard": (
        "guard status",
        "guard plan chat-70b",
        "guard disable chat-70b --reason 'garbled answers'",
    ),
    "guard status": ("guard status", "guard status chat-70b --json"),
    "guard plan": ("guard plan chat-70b", "guard plan chat-70b --json"),
    "guard pause": ("guard pause chat-70b --for 2h --reason 'load test'",),
    "guard resume": ("guard resume chat-70b",),
    "guard disable": (
        "guard disable chat-70b --reason 'garbled answers'",
        "guard disable chat-70b --for 6h --no-wait",
    ),
    "guard enable": ("guard enable chat-70b", "guard enable chat-70b --no-wait"),
    "guard history": (
        "guard history",
        "guard history chat-70b --since 2026-11-24T15:00Z --limit 50",
    ),
    "guard explain": ("guard explain latest", "guard explain latest --target chat-70b"),
    "guard-helper": ("guard-helper vllm.service --idle 60s",),
    "switch": (
        "switch chat-70b",
        "switch chat-70b --k 0 --lease 15m",
        "switch chat-70b --schedule '[[1,8,4],[9,256,0]]'",
    ),
    "experiment": (
        "experiment results chat-70b",
        "experiment stop chat-70b --reason 'a demo'",
    ),
    "experiment status": ("experiment status", "experiment status chat-70b --json"),
    "experiment results": (
        "experiment results chat-70b",
        "experiment results chat-70b --reference 2",
    ),
    "experiment stop": ("experiment stop chat-70b --reason 'a demo'",),
    "experiment start": ("experiment start chat-70b",),
    "db": ("db current", "db upgrade", "db check"),
    "db upgrade": (
        "db upgrade",
        "db upgrade --database postgresql+psycopg://specwatch@db/specwatch",
    ),
    "db current": ("db current", "db current --config specwatch.yml --json"),
    "db prune": ("db prune", "db prune --minutes 14d --hours 400d"),
    "db check": ("db check", "db check --database sqlite:////tmp/copy.db"),
    "tap": (
        "tap flags --target http://127.0.0.1:8000",
        "tap proxy --upstream http://127.0.0.1:8080 --listen 127.0.0.1:8001",
    ),
    "tap flags": (
        "tap flags --target http://127.0.0.1:8000",
        "tap flags -- vllm serve MODEL --speculative-config '{...}'",
        "tap flags --switch --systemd -- vllm serve MODEL",
    ),
    "tap proxy": (
        "tap proxy --upstream http://127.0.0.1:8080",
        "tap proxy --upstream http://127.0.0.1:8080 --listen 127.0.0.1:8001",
    ),
}
"""Arguments of ``specwatch``, by the words of the command."""


def epilog(command: str) -> str:
    """The examples of a command as the end of its help."""
    lines = "\n".join(f"  specwatch {example}" for example in EXAMPLES[command])
    return f"\b\nExamples:\n{lines}"
