"""What a model is: its bytes, or the commit of a hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from paco_core.config.references import model_content


def test_a_file_counts_by_content_and_a_hubs_model_by_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = tmp_path / "adapter.safetensors"
    adapter.write_bytes(b"one")
    known = model_content(tmp_path, adapter.name)
    adapter.write_bytes(b"two")
    assert model_content(tmp_path, adapter.name) != known
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub/models--org--name"
    found = [model_content(tmp_path, "org/name")]
    for commit in ("a" * 40, "b" * 40):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs/main").write_text(commit)
        found.append(model_content(tmp_path, "org/name"))
    assert found == ["org/name", f"org/name@{'a' * 40}", f"org/name@{'b' * 40}"]
