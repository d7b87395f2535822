"""History from a Prometheus that has scraped the engines all along."""
