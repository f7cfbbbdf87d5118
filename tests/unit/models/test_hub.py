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
from PIL import Image
from safetensors.torch import load_file

from paco_core.config import profiles
from paco_core.io.files import DataError
from paco_core.models.hub import explained, from_hub
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
SCORE = """
import contextlib, io, json, sys
from paco_core.cli.commands import main
printed = {}
for name in sys.argv[3:]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        with contextlib.suppress(SystemExit):
            main(["score", sys.argv[1], sys.argv[2], "--model", name])
    printed[name] = out.getvalue().strip() or err.getvalue().strip().splitlines()[-1]
print(json.dumps(printed))
"""
FETCH = """
import json, sys
from pathlib import Path
from paco_core.config import profiles
from paco_core.io.files import DataError
from paco_core.reward_model.published import keep_adapter
told = {}
for name in sys.argv[2:]:
    params = profiles.read(Path(sys.argv[1]), "published").reward
    params = params.model_copy(update={"source": "adapter", "weights": name})
    try:
        kept = keep_adapter(Path(sys.argv[1]), params, Path("kept") / name)
        told[name] = ",".join(sorted(path.name for path in kept.iterdir()))
    except DataError as error:
        told[name] = str(error)
print(json.dumps(told))
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
    with fake_hub(root) as found:
        found.gated.add("org/gated")
        yield found


def ask(code: str, hub: FakeHub, home: Path, *args: str, **environment: str) -> dict[str, str]:
    """What a process of its own says of each name."""
    kept = {name: value for name, value in os.environ.items() if "OFFLINE" not in name and name != "HF_TOKEN"}
    env = {**kept, "HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=env, cwd=home.parent, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_a_published_reward_in_shards_is_loaded_and_what_cannot_be_is_told_with_the_cure(
    hub: FakeHub, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    told = ask(LOAD, hub, home, "org/reward", "org/gated", "org/none", "org/empty")
    assert told["org/reward"].startswith("loaded ")
    assert told["org/gated"] == (
        f"org/gated: the repository is gated; accept its licence at {hub.address}/org/gated, then log in with "
        "`hf auth login`, or put a token into HF_TOKEN"
    )
    assert told["org/none"].startswith("org/none: neither a folder of the project nor a repository of http")
    assert "correct the name" in told["org/none"]
    assert told["org/empty"].startswith("org/empty: ") and "no model there" in told["org/empty"]

    cached = home / "hub" / "models--org--reward"
    shard = next(path for path in cached.rglob("model-00001*.safetensors"))
    content = shard.read_bytes()
    shard.resolve().write_bytes(content[: len(content) // 2])
    told = ask(LOAD, hub, home, "org/reward", "org/other", HF_HUB_OFFLINE="1")
    assert "a file in the cache is cut off or damaged" in told["org/reward"]
    assert f"remove {cached} and run again" in told["org/reward"]
    assert told["org/other"].startswith(f"org/other: not, or not wholly, in the cache {home / 'hub'}")
    assert "HF_HUB_OFFLINE" in told["org/other"] and "hf download org/other" in told["org/other"]

    shutil.rmtree(cached)
    assert ask(LOAD, hub, home, "org/reward")["org/reward"].startswith("loaded "), "the cure cures"


def test_paco_score_takes_a_model_of_the_hub_and_its_safetensors_only(hub: FakeHub, tmp_path: Path) -> None:
    pickled = hub.folder / "org/pickled"
    shutil.copytree(hub.folder / "org/reward", pickled)
    for file in pickled.glob("model*.safetensors*"):
        file.unlink()
    (pickled / "pytorch_model.bin").write_bytes(b"code that would run")
    for name in ("a", "b"):
        Image.effect_noise((56, 56), 40).convert("RGB").save(tmp_path / f"{name}.png")
    pictures = [str(tmp_path / f"{name}.png") for name in ("a", "b")]
    home, folder = tmp_path / "home", str(hub.folder / "org/reward")
    printed = ask(SCORE, hub, home, *pictures, "org/reward", folder, "org/pickled", "org/none")
    assert printed["org/reward"] == printed[folder] and 0 <= float(printed[folder]) <= 1
    assert "org/pickled" in printed["org/pickled"] and "safetensors" in printed["org/pickled"]
    assert "neither a folder of the project nor a repository" in printed["org/none"]
    again = ask(SCORE, hub, home, *pictures, "org/reward", "org/other", HF_HUB_OFFLINE="1")
    assert again["org/reward"] == printed[folder], "what was downloaded is read without the hub"
    assert "org/other: not, or not wholly, in the cache" in again["org/other"]


def test_a_download_that_is_interrupted_goes_on(hub: FakeHub, tmp_path: Path) -> None:
    """The hub ends the connection within a shard; whoever asks again gets the whole model."""
    hub.cut |= {path.name: 1000 for path in (hub.folder / "org/reward").glob("model-00001*.safetensors")}
    first = ask(LOAD, hub, tmp_path / "home", "org/reward")["org/reward"]
    assert first.startswith(("loaded ", "org/reward: ")), first
    assert ask(LOAD, hub, tmp_path / "home", "org/reward")["org/reward"].startswith("loaded ")


def test_published_adapters_are_fetched_or_told(hub: FakeHub, repository: Path, tmp_path: Path) -> None:
    folder = hub.folder / "org/adapter"
    network = Network.load(hub.folder / "base")
    given = profiles.read(repository, "storybook").reward.lora
    wrapped = lora.attach(network.model, given, "base", 0)
    lora.save(wrapped, folder, "base")
    told = ask(FETCH, hub, tmp_path / "home", str(repository), "org/adapter", "org/reward", "org/gated", "org/none")
    assert "adapter_model.safetensors" in told["org/adapter"]
    kept = tmp_path / "kept/org/adapter/adapter/adapter_model.safetensors"
    assert load_file(kept).keys() == load_file(folder / "adapter_model.safetensors").keys()
    assert "no adapter there (adapter_config.json is missing)" in told["org/reward"]
    assert "gated" in told["org/gated"] and "correct the name" in told["org/none"]


def test_a_shard_that_is_missing_from_a_folder_is_named(hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "reward"
    shutil.copytree(hub.folder / "org/reward", folder)
    lost = sorted(folder.glob("model-*.safetensors"))[-1]
    lost.unlink()
    with pytest.raises(DataError, match=lost.name):
        Network.load(folder)


def test_errors_about_folders_and_of_other_kinds_pass(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), from_hub("org/model"):
        raise ZeroDivisionError
    with pytest.raises(FileNotFoundError), from_hub(tmp_path):
        raise FileNotFoundError(tmp_path)
    assert explained("org/model", ConnectionResetError("reset")) == (
        "org/model: the download was interrupted (reset); run again, which continues it"
    )
