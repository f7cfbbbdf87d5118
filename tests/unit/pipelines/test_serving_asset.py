"""The asset of the served reward: starts the server and shows where it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import dagster as dg
import pytest

from paco_core.serving.servers import endpoint
from paco_pipelines.defs import serving
from tests.support.serving_fakes import diarist_launch


@pytest.mark.slow
def test_the_asset_shows_fingerprint_engine_and_links(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data/reward_merged"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    text = (repository / "params.yaml").read_text()
    (tmp_path / "params.yaml").write_text(text.replace("start_timeout_s: 120", "start_timeout_s: 500"))
    monkeypatch.setattr(endpoint, "launch", diarist_launch(tmp_path / "diary"))
    monkeypatch.setattr(serving, "ROOT", tmp_path)
    name = endpoint.served_name(endpoint.fingerprint(folder))
    try:
        result = serving.reward_endpoint(dg.build_asset_context())
        assert isinstance(result, dg.MaterializeResult) and result.data_version == dg.DataVersion(name)
        shown = dict(result.metadata or {})
        assert shown["fingerprint"] == name.split("@")[1] and shown["engine"] == "transformers"
        assert isinstance(shown["server"], dg.UrlMetadataValue) and shown["server"].url.startswith("http://127.0.0.1:")
        assert serving.reward_endpoint_healthy().passed
    finally:
        endpoint.down(tmp_path)
    assert not serving.reward_endpoint_healthy().passed
    shutil.rmtree(tmp_path / ".paco")
