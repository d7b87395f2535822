"""What the daemon serves over HTTP: API, status page, its own metrics, runbook."""
