"""How often a processor waits for the GPU while the judge scores: not in each layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from paco_core.reward_model import network
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery
from tests.support import tiny_vlm
from tests.support.pretended_cuda import pretended
from tests.support.pretended_cuda.waits import waits

#: Layers of the vision tower and of the language model: as Qwen2.5-VL-7B, and fewer.
DEEP, SHALLOW = (32, 28), (8, 2)
SIDE = 512  # of a panel, which has 25 windows
PANELS = [Image.effect_noise((SIDE, SIDE), sigma).convert("RGB") for sigma in (60, 90)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Path]:
    folder = tmp_path_factory.mktemp("models")
    return {layers: tiny_vlm.build(folder / str(layers[0]), layers=layers) for layers in (DEEP, SHALLOW)}


def counted(model: Path) -> tuple[int, float]:
    """Waits for one question about two new panels, and its score."""
    with pretended():
        scorer = Scorer(model, device="cuda", dtype="bfloat16", min_pixels=SIDE**2, max_pixels=SIDE**2)
        with waits() as found:
            (score,) = scorer.score([PairQuery(PANELS[0], PANELS[1], "Same?")])
    return found.count, score.value


@pytest.mark.slow
def test_a_question_waits_as_often_whatever_the_number_of_layers(
    models: dict[tuple[int, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (deep, value), (shallow, _) = (counted(models[layers]) for layers in (DEEP, SHALLOW))
    monkeypatch.setattr(network, "attend_in_one_call", lambda _tower: None)
    library, expected = counted(models[DEEP])
    print(f"waits: {deep}, and {library} as transformers attends")
    assert deep == shallow < 40 < 115 < library
    assert value == pytest.approx(expected, abs=0.02)


def test_each_kind_of_wait_is_counted() -> None:
    with pretended():
        given, mask = torch.ones(4, device="cuda"), torch.tensor([True, False, True, False], device="cuda")
        kinds: list[Callable[[], object]] = [
            lambda: given.cpu(), lambda: given.tolist(), lambda: given.sum().item(), lambda: bool(mask.any()),
            lambda: torch.ones(4).to("cuda"), lambda: given.copy_(torch.ones(4)), lambda: mask.nonzero(),
            lambda: given[mask], lambda: given[torch.tensor([0, 2])], lambda: given.repeat_interleave(mask.long()),
            lambda: torch.unique_consecutive(given),
        ]  # fmt: skip
        for ask in kinds:
            with waits() as found:
                ask()
            assert found.count == 1, kinds.index(ask)
        with waits() as found:
            _ = (given + 1)[mask.long()] * mask, given.to(torch.float64), torch.ones(2).tolist()
        assert found.count == 0
