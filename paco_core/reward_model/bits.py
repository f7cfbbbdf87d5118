"""Tries out whether a question gets the same bits alone and beside others on this machine; see :mod:`.shapes`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image

from paco_core.reward_model.network import Network, TokenRow
from paco_core.reward_model.passes import Passes
from paco_core.reward_model.shapes import chunks, whole


def batches_keep_bits(network: Network, passes: Passes, tokens: int) -> bool:
    """Whether questions get the same logits one by one, together, and together in another order.

    Args:
        tokens: of a pass at most; as many questions are asked together, each about pictures of two sizes.
    """

    def ask(pairs: Sequence[Sequence[Image.Image]]) -> list[TokenRow]:
        visuals = chunks(network.differentiable_features([picture for pair in pairs for picture in pair]), 2)
        return [TokenRow(network.prompt("Same?", (a.grid, b.grid)), (a, b)) for a, b in visuals]

    def logits(pairs: Sequence[Sequence[Image.Image]]) -> torch.Tensor:
        return network.first_logits(ask(pairs))

    with torch.no_grad():
        (row,) = ask([_pictures(network, 2)])
    pairs = chunks(_pictures(network, 2 * max(2, tokens // whole(row.length))), 2)
    *single, together, turned = passes.run(logits, [*([pair] for pair in pairs), pairs, pairs[::-1]])
    alone = torch.cat(single)
    return torch.equal(together, alone) and torch.equal(turned, alone.flip(0))


def answers(network: Network) -> bool:
    """Whether a question about a small picture gets finite logits; raises whatever the model's files make of it."""
    with torch.no_grad():
        (visual,) = network.differentiable_features(_pictures(network, 1))
        logits = network.first_logits([TokenRow(network.prompt("Same?", (visual.grid,)), (visual,))])
    return bool(logits.isfinite().all())


def _pictures(network: Network, count: int) -> list[Image.Image]:
    """Small pictures of noise: by turns the smallest that the model sees as they are, and two of it side by side."""
    given = network.processor.image_processor
    unit = given.patch_size * given.merge_size
    side = unit * max(1, round(given.size.shortest_edge**0.5 / unit))
    pixels = torch.randint(0, 256, (count, side, 2 * side, 3), generator=torch.Generator().manual_seed(0))
    drawn = [Image.fromarray(picture.to(torch.uint8).numpy()) for picture in pixels]
    return [picture.crop((0, 0, (1 + number % 2) * side, side)) for number, picture in enumerate(drawn)]
