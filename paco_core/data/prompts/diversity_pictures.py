"""Charts of diversification: nearest-neighbour similarity before and after, and a part of the graph."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from paco_core.data.prompts.diversify import Diversified
from paco_core.data.records.categories import category
from paco_core.data.records.records import PromptRecord
from paco_core.io.imports import gc_paused
from paco_core.io.pictures import decode_image

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_NODES = 260  # maximum nodes in an image
STANDS_FOR = 40  # maximum nodes next to a selected one
#: Okabe and Ito's colours, distinguished also by readers who do not see red or green.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def histogram(result: Diversified) -> Image:
    """Similarity of each prompt to its nearest other prompt: among all prompts, and among the selected prompts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    low = float(np.nanmin([result.nearest_before, result.nearest_after]))
    width = max(1.0 - low, 0.01) / 40
    first = np.ceil((result.threshold - low) / width)
    bins = result.threshold + width * np.arange(-first, 42 - first)  # the threshold is between two bars
    for similarities, label, style in (
        (result.nearest_before, "all {} prompts", {"color": COLOURS[1], "alpha": 0.45}),
        (result.nearest_after, "the {} kept", {"color": COLOURS[0], "histtype": "step", "linewidth": 2}),
    ):
        valid = similarities[~np.isnan(similarities)]
        shares = np.full(len(valid), 1 / len(valid))
        axes.hist(valid, bins=bins, weights=shares, label=label.format(len(valid)), **style)
    axes.axvline(result.threshold, color="black", linestyle="--", linewidth=1)
    axes.annotate(f"threshold {result.threshold:.3f}", (result.threshold, 1), (4, -4), va="top",
                  xycoords=("data", "axes fraction"), textcoords="offset points")  # fmt: skip
    axes.set_xlabel("cosine similarity to the nearest other prompt")
    axes.set_ylabel("share of the prompts")
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    return _image(figure)


def sample_nodes(embeddings: np.ndarray, result: Diversified, most: int = MAX_NODES) -> list[int]:
    """Selected prompts at equal distances in order, each with its similar prompts, up to ``most`` prompts.

    Args:
        embeddings: (prompts, width), rows of unit length.
    """
    if len(embeddings) <= most:
        return list(range(len(embeddings)))
    chosen: dict[int, None] = {}
    step = max(1, len(result.selected) // most)
    for position in result.selected[::step]:
        near = np.flatnonzero(embeddings @ embeddings[position] >= result.threshold)
        chosen |= dict.fromkeys([position, *near[:STANDS_FOR].tolist()])
        if len(chosen) >= most:
            break
    return sorted(chosen)


def similarity_graph(embeddings: np.ndarray, records: Sequence[PromptRecord], result: Diversified) -> Image:
    """The similarity graph, or a part of it: filled dots are selected, hollow ones are not, and lines join similar
    prompts.

    Args:
        embeddings: (prompts, width), rows of unit length, in the order of ``records``.
    """
    with gc_paused():
        from matplotlib.figure import Figure

    nodes = sample_nodes(embeddings, result)
    similar = embeddings[nodes] @ embeddings[nodes].T
    edges = np.argwhere(np.triu(similar >= result.threshold, 1))
    net = nx.Graph()
    net.add_nodes_from(range(len(nodes)))
    net.add_edges_from(edges.tolist())
    places = _places(net)
    selected = set(result.selected)
    names = sorted({category(records[node]) for node in nodes})
    figure = Figure(figsize=(9, 7), layout="constrained")
    axes = figure.subplots()
    nx.draw_networkx_edges(net, places, ax=axes, edge_color="#999999", width=0.6)
    for name, colour in zip(names, COLOURS * len(names), strict=False):
        for inside in (True, False):
            members = [
                n for n, node in enumerate(nodes) if category(records[node]) == name and (node in selected) == inside
            ]
            axes.scatter(
                *np.array([places[n] for n in members]).reshape(-1, 2).T,
                s=46 if inside else 16,
                facecolors=colour if inside else "white",
                edgecolors=colour,
                linewidths=1,
                zorder=2,
                label=name if inside else None,
            )
    part = "" if len(nodes) == len(embeddings) else f" {len(nodes)} of {len(embeddings)} prompts are shown."
    axes.set_title(
        f"Prompts joined where their similarity reaches {result.threshold:.3f}: "
        f"{len(result.selected)} kept (filled), {len(embeddings) - len(result.selected)} left out (hollow).{part}",
        fontsize=9,
    )
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=6, fontsize=8)
    axes.set_axis_off()
    return _image(figure)


def _places(net: Any) -> dict[int, np.ndarray]:
    """Positions of the nodes: each connected part has a spring layout, and the parts are in rows, the largest first."""
    places: dict[int, np.ndarray] = {}
    parts = sorted(nx.connected_components(net), key=lambda part: (-len(part), min(part)))
    width = 1.25 * np.sqrt(sum(_side(len(part)) ** 2 for part in parts))
    x = y = height = 0.0
    for part in parts:
        side = _side(len(part))
        if x and x + side > width:
            x, y, height = 0.0, y - height, 0.0
        around = nx.spring_layout(net.subgraph(sorted(part)), seed=0, center=(0, 0), iterations=80)
        for node, place in around.items():
            places[node] = np.array([x + side / 2, y - side / 2]) + place * side * 0.42
        x, height = x + side, max(height, side)
    return places


def _side(nodes: int) -> float:
    return 1.0 if nodes == 1 else 1.5 * float(nodes) ** 0.5


def _image(figure: Any) -> Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return decode_image(buffer.getvalue(), "figure")
