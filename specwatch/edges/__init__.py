"""One outside resource a file: database, HTTP, systemd."""
