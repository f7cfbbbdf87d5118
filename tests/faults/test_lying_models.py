"""Models and adapters of somebody else's making, whose files are damaged or lie: one line with the folder.

Every verb that loads weights is asked: to score, to paint by the project's painter, and to paint by an adapter.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from paco_core.cli.commands import main
from tests.faults.verdicts import Breach, Ledger, unclear
from tests.support import tiny_vlm
from tests.support.tiny import tiny_flux

HUGE = 2**20
PAINT = ("paint", "a bear", "--panels", "one", "two", "three", "four", "--size", "64", "--seeds", "1", "--steps", "1")
Harm = Callable[[Path], object]


def says(file: str, key: str, value: object) -> Harm:
    """A configuration that says something else."""

    def harm(folder: Path) -> None:
        tree = place = json.loads((folder / file).read_text())
        *above, name = key.split(".")
        for step in above:
            place = place[step]
        place[name] = value
        (folder / file).write_text(json.dumps(tree))

    return harm


def holds(file: str, data: bytes) -> Harm:
    return lambda folder: (folder / file).write_bytes(data)


def cut(file: str) -> Harm:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-9])


def lies(file: str) -> Harm:
    """A header with a tensor that is larger than the file."""

    def harm(folder: Path) -> None:
        data = (folder / file).read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        next(entry for name, entry in header.items() if name != "__metadata__")["shape"] = [2**40]
        text = json.dumps(header).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])

    return harm


WEIGHTS = "model.safetensors"
REWARD = {
    "hidden_size of 2^20": says("config.json", "text_config.hidden_size", HUGE),
    "a million layers": says("config.json", "text_config.num_hidden_layers", HUGE),
    "no width of a window": says("config.json", "vision_config.window_size", 0),
    "sections that do not add up": says("config.json", "text_config.rope_parameters.mrope_section", []),
    "pictures of 2^40 pixels": says("processor_config.json", "image_processor.size.shortest_edge", 2**40),
    "a configuration in Latin-1": holds("config.json", b'{"model_type": "\xe9"}'),
    "a configuration without end": holds("config.json", b"[" * 100_000),
    "weights cut off": cut(WEIGHTS),
    "weights whose header lies": lies(WEIGHTS),
    "a tokenizer that is none": holds("tokenizer.json", b"{}"),
    "a template without end": holds("chat_template.jinja", b"{% for i in range(10**10) %}{% endfor %}"),
    "a template that raises": holds("chat_template.jinja", b"{{ nothing.at.all }}"),
}
VAE = "vae/diffusion_pytorch_model.safetensors"
PAINTER = {
    "heads without number": says("transformer/config.json", "num_attention_heads", HUGE),
    "an index that is a list": holds("model_index.json", b"[]"),
    "an unknown scheduler": says("model_index.json", "scheduler", ["diffusers", "None"]),
    "a VAE cut off": cut(VAE),
}
LORA, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
ADAPTER = {
    "half of it": lambda folder: (folder / LORA).unlink(),
    "weights cut off": cut(LORA),
    "weights whose header lies": lies(LORA),
    "settings that are a list": holds(SETTINGS, b"[]"),
    "a rank of 2^20": says(SETTINGS, "r", HUGE),
    "no targets": says(SETTINGS, "target_modules", 3),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model, a painter and an adapter of it, as they should be."""
    import torch
    from safetensors.torch import save_file

    root = tmp_path_factory.mktemp("models")
    tiny_vlm.build(root / "reward")
    tiny_flux(root / "painter")
    (root / "adapter").mkdir()
    width = json.loads((root / "painter/transformer/config.json").read_text())
    size = width["num_attention_heads"] * width["attention_head_dim"]
    shapes = {"A": (2, size), "B": (size, 2)}
    layer = "base_model.model.transformer_blocks.0.attn.to_q"
    save_file({f"{layer}.lora_{n}.weight": torch.zeros(s) for n, s in shapes.items()}, root / "adapter" / LORA)
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["transformer_blocks.0.attn.to_q"]}
    (root / "adapter" / SETTINGS).write_text(json.dumps(settings))
    return root


@pytest.fixture
def there(bare: Path, tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that paints with the tiny painter."""
    from PIL import Image

    root = tmp_path / "project"
    shutil.copytree(bare, root, symlinks=True)
    Image.new("RGB", (64, 64)).save(root / "cat.png")
    text = (root / "params.yaml").read_text().replace("data/zoo/flux\n", "painter\n")
    (root / "params.yaml").write_text(text)
    shutil.copytree(models, root, dirs_exist_ok=True)
    monkeypatch.chdir(root)
    return root


DOORS: dict[str, tuple[str, tuple[str, ...], dict[str, Harm]]] = {
    "paco score": ("reward", ("score", "cat.png", "cat.png", "--model", "reward"), REWARD),
    "paco paint": ("painter", (*PAINT, "--policy", "base"), PAINTER),
    "paco paint --policy FOLDER": ("adapter", (*PAINT, "--policy", "./adapter"), ADAPTER),
}


@pytest.mark.parametrize("door", DOORS)
def test_models_that_lie(door: str, there: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    folder, command, harms = DOORS[door]
    main(command)
    capsys.readouterr()
    with ledger.row("a model that lies", door, hostile=True) as row:
        for label, harm in harms.items():
            sound = there / f"{folder}.sound"
            shutil.copytree(there / folder, sound)
            harm(there / folder)
            row.judge(label, rejection_breach(command, folder, capsys))
            shutil.rmtree(there / folder)
            sound.rename(there / folder)


def rejection_breach(command: tuple[str, ...], folder: str, capsys: pytest.CaptureFixture[str]) -> Breach:
    """The breach in how a verb ended."""
    try:
        main(command)
    except SystemExit as exit_error:
        stderr = capsys.readouterr().err
        return (
            unclear(stderr, [folder])
            if exit_error.code == 1
            else ("unclear", f"ended with {exit_error.code}: {stderr[-300:]}")
        )
    except Exception as error:
        return "unclear", f"{type(error).__name__}: {error}"
    return "wrong", "accepted as good"
