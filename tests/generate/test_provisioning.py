"""Grafana finds the data source and the dashboards by the files that provision it."""

from __future__ import annotations

import yaml

from specwatch.generate.dashboards import provisioning

FILES = {path: yaml.safe_load(text) for path, text in provisioning().items()}


def test_every_file_is_for_a_folder_of_grafana_and_not_to_be_edited() -> None:
    assert set(FILES) == {
        "provisioning/datasources/specwatch.yml", "provisioning/dashboards/specwatch.yml",
    }  # fmt: skip
    for text in provisioning().values():
        assert "DO NOT EDIT" in text.splitlines()[0]


def test_a_second_default_data_source_would_keep_grafana_from_starting() -> None:
    (source,) = FILES["provisioning/datasources/specwatch.yml"]["datasources"]
    assert source["type"] == "prometheus"
    assert not source.get("isDefault", False)


def test_dashboards_are_read_from_files_and_stay_as_generated() -> None:
    (provider,) = FILES["provisioning/dashboards/specwatch.yml"]["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"].startswith("/")
    assert provider["allowUiUpdates"] is False
