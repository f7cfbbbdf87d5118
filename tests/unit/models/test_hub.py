"""Models of a hub: gated, missing, out of reach, cut off; each is one error that names the repository and the cure.

The hub is one of this machine. It is asked by a process of its own, for the client reads its address once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from paco_core.config import profiles
from paco_core.reward_model import lora
from paco_core.reward_model.network import Network
from tests.support import tiny_vlm
from tests.support.fake_hub import FakeHub, fake_hub

pytestmark = pytest.mark.slow

LOAD = """
import json, sys
from paco_core.io.files import DataError
from paco_core.reward_model.network import Network
told = {}
for name in sys.argv[1:]:
    try:
        told[name] = f"loaded {sum(p.numel() for p in Network.load(name).model.parameters())}"
    except DataError as error:
        told[name] = str(error)
print(json.dumps(told))
"""
FETCH = """
import json, sys
from pathlib import Path
from paco_core.config import profiles
from paco_core.reward_model.published import copy_adapter
params = profiles.read(Path(sys.argv[1]), "published").reward
params = params.model_copy(update={"source": "adapter", "weights": sys.argv[2]})
print(json.dumps(sorted(path.name for path in copy_adapter(Path(sys.argv[1]), params, Path("kept")).iterdir())))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A merged reward in shards, a gated copy of it, and an adapter in PEFT's layout."""
    root = tmp_path_factory.mktemp("hub")
    network = Network.load(tiny_vlm.build(root / "base"))
    network.model.save_pretrained(root / "org/reward", max_shard_size="100KB")
    network.processor.save_pretrained(root / "org/reward")
    assert len(list((root / "org/reward").glob("model-*.safetensors"))) > 1
    shutil.copytree(root / "org/reward", root / "org/gated")
    (root / "org/empty").mkdir()
    (root / "org/empty/README.md").write_text("nothing")
    with fake_hub(root) as fake:
        fake.gated.add("org/gated")
        yield fake


def run_with_hub(code: str, hub: FakeHub, home: Path, *args: str, **environment: str) -> dict[str, str]:
    """What a process of its own says of each name."""
    inherited = {name: value for name, value in os.environ.items() if "OFFLINE" not in name and name != "HF_TOKEN"}
    env = {**inherited, "HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **environment}
    completed = subprocess.run(
        [sys.executable, "-c", code, *args], env=env, cwd=home.parent, capture_output=True, text=True, timeout=300
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    messages: dict[str, str] = json.loads(completed.stdout.splitlines()[-1])
    return messages


@pytest.mark.thorough
def test_a_published_reward_in_shards_is_loaded_and_what_cannot_be_is_told_with_the_cure(
    hub: FakeHub, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    pickled = shutil.copytree(hub.folder / "org/reward", hub.folder / "org/pickled")
    for file in pickled.glob("model*.safetensors*"):
        file.unlink()
    (pickled / "pytorch_model.bin").write_bytes(b"code that would run")
    messages = run_with_hub(LOAD, hub, home, "org/reward", "org/gated", "org/none", "org/empty", "org/pickled")
    assert messages["org/reward"].startswith("loaded ")
    assert f"{hub.address}/org/gated" in messages["org/gated"] and "HF_TOKEN" in messages["org/gated"]
    for name in ("org/none", "org/empty", "org/pickled"):
        assert messages[name].startswith(f"{name}: ")

    cached = home / "hub" / "models--org--reward"
    shard = next(path for path in cached.rglob("model-00001*.safetensors"))
    content = shard.read_bytes()
    shard.resolve().write_bytes(content[: len(content) // 2])
    messages = run_with_hub(LOAD, hub, home, "org/reward", "org/other", HF_HUB_OFFLINE="1")
    assert f"remove {cached} and run again" in messages["org/reward"]
    assert "hf download org/other" in messages["org/other"]

    shutil.rmtree(cached)
    assert run_with_hub(LOAD, hub, home, "org/reward")["org/reward"].startswith("loaded "), "the cure cures"


def test_a_published_adapter_is_fetched(hub: FakeHub, repository: Path, tmp_path: Path) -> None:
    folder = hub.folder / "org/adapter"
    network = Network.load(hub.folder / "base")
    lora_params = profiles.read(repository, "storybook").reward.lora
    wrapped = lora.attach_lora(network.model, lora_params, "base", 0)
    lora.save_lora(wrapped, folder, "base")
    assert "adapter_model.safetensors" in run_with_hub(FETCH, hub, tmp_path / "home", str(repository), "org/adapter")
    weights = load_file(tmp_path / "kept/adapter/adapter_model.safetensors")
    assert weights.keys() == load_file(folder / "adapter_model.safetensors").keys()
