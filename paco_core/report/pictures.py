"""Pictures before any training: the first grids, and the pairs that the judge learns from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from paco_core.data.records.panels import PanelStore
from paco_core.data.records.records import parse_ref
from paco_core.io.files import read_table
from paco_core.io.shards import GRID_COLUMNS, ShardReader
from paco_core.report.html import Picture

LABELS = ("Yes", "No")


@dataclass(frozen=True)
class SheetRow:
    """One prompt of the contact sheet with its grids."""

    theme: str
    pictures: list[Picture]


@dataclass(frozen=True)
class PairCard:
    """Two panels, the label, and why."""

    first: Picture
    second: Picture
    theme: str
    label: str
    reasons: str


@dataclass(frozen=True)
class Sample:
    """One prompt and seed at one size, before and after training."""

    title: str  # the set's theme, or the instruction of an edit
    size: int
    before: Picture
    after: Picture
    key: str  # of what was measured of each
    reference: Picture | None  # what was to be edited


def _choice_order(identity: str) -> str:
    """A fixed shuffle: an order that looks random and is the same on every machine."""
    return hashlib.sha256(identity.encode()).hexdigest()


def contact_sheet(grids: Path, themes: dict[str, str], rows: int) -> list[SheetRow]:
    """Grids of ``rows`` prompts, every seed of each; a fixed random choice of prompts, not the best ones."""
    reader = ShardReader.below(grids, require=GRID_COLUMNS)
    prompts = sorted(reader.index["prompt_id"].astype(str).unique(), key=_choice_order)
    named = [p for p in prompts if p in themes] or prompts
    sheet = []
    for prompt in named[:rows]:
        table = reader.index[reader.index["prompt_id"].astype(str) == prompt].sort_values("seed")
        theme = themes.get(prompt, f"prompt {prompt}")
        pictures = [Picture.of(reader.read(str(row.id)), f"{theme}, seed {row.seed}") for row in table.itertuples()]
        sheet.append(SheetRow(theme, pictures))
    return sheet


def pair_cards(labels: Path, grids: Path, count: int) -> list[PairCard]:
    """``count`` labelled pairs of painted panels, Yes and No in turn, each of another prompt: a fixed random choice."""
    panels = PanelStore.below(grids)
    painted = set(panels.grids.index.index)
    rows = [row for row in read_table(labels).to_dict("records") if parse_ref(str(row["first"]))[0] in painted]
    rows = [row for row in rows if not isinstance(row.get("instruction"), str)]
    rows.sort(key=lambda row: _choice_order(str(row["pair_id"])))
    queues = {label: [row for row in rows if row["label"] == label] for label in LABELS}
    cards: list[PairCard] = []
    used: set[str] = set()
    while len(cards) < count and any(queues.values()):
        turn, other = LABELS[len(cards) % 2], LABELS[(len(cards) + 1) % 2]
        queue = queues[turn] or queues[other]
        row = queue.pop(next((n for n, r in enumerate(queue) if str(r["prompt_id"]) not in used), 0))
        used.add(str(row["prompt_id"]))
        first, second = (
            Picture.of(panels.panel(str(row[side])), f"{side} picture: {row['theme']}") for side in ("first", "second")
        )
        reasons = str(row["answer"]).removeprefix(f"{row['label']}.").strip()
        cards.append(PairCard(first, second, str(row["theme"]), str(row["label"]), reasons))
    return cards
