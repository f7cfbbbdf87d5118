"""Preference files that trainers read: each ranking as pairs of a better and a worse image.

Formats: the columns of Pick-a-Pic (huggingface.co/datasets/yuvalkirstain/pickapic_v2), which Diffusion-DPO reads
(github.com/SalesforceAIResearch/DiffusionDPO, train.py; diffusers, train_diffusion_dpo_sdxl.py); folders ``winner`` and
``loser`` with equal file names and captions, and ``metadata.jsonl`` for the ImageFolder of `datasets`; JSON Lines of
pairs. :func:`read_pairs` reads the first and the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from paco_core.data.annotation.votes import Annotation, instance_rows, unscored
from paco_core.data.tables import LINES, read_rows
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, digest, read_jsonl, write_jsonl, write_text
from paco_core.io.image_metadata import encode_image
from paco_core.io.rejected import Rejected
from paco_core.io.shards import encode_png

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

PICK_A_PIC, FOLDERS, JSONL = "pick-a-pic", "folders", "jsonl"
FORMATS = (PICK_A_PIC, FOLDERS, JSONL)
PARQUET = "data/train-00000-of-00001.parquet"  # where `datasets.load_dataset(FOLDER)` finds the split train
ROWS = 256  # of the Parquet file that are in memory at once
#: Names of (instance id, annotator, image that won, image that lost) in a row of each format.
_PAIR_KEYS = ("instance_id", "annotator", "winner_id", "loser_id")
_PICK_KEYS = ("ranking_id", "user_id", "best_image_uid", "image_0_uid", "image_1_uid")


class ImageSource(Protocol):
    """Images by reference, ``ID#NUMBER``."""

    def panel(self, ref: str) -> Image: ...


@dataclass(frozen=True)
class PreferencePair:
    """Two images of one ranking, by reference. ``first`` is the candidate with the lower position."""

    instance_id: str
    annotator: str
    prompt: str
    reference: str
    first: str
    second: str
    is_first_better: bool

    @property
    def winner(self) -> str:
        return self.first if self.is_first_better else self.second

    @property
    def loser(self) -> str:
        return self.second if self.is_first_better else self.first


def preference_pairs(instances: pd.DataFrame, votes: Iterable[Annotation]) -> Iterator[PreferencePair]:
    """All pairs of each ranking: n (n - 1) / 2 for n candidates.

    Args:
        instances: columns ``instance_id``, ``prompt``, ``reference``, ``candidates``.
    """
    prompts = dict(zip(instances["instance_id"], instances["prompt"], strict=True))
    rows = {name: (reference, candidates) for name, reference, candidates in instance_rows(instances)}
    for vote in votes:
        reference, candidates = rows[vote.instance_id]
        for first, second in combinations(range(len(candidates)), 2):
            better = vote.ranking.index(first) < vote.ranking.index(second)
            yield PreferencePair(
                vote.instance_id, vote.annotator, prompts[vote.instance_id], reference, candidates[first],
                candidates[second], better,
            )  # fmt: skip


def export_pairs(form: str, folder: Path, pairs: Sequence[PreferencePair], images: ImageSource) -> None:
    """Write pairs into a new folder, in one of :data:`FORMATS`.

    Raises:
        DataError: if there is no pair, the folder exists, or an image cannot be read.
    """
    if not pairs:
        raise DataError("there is no ranking to export; rank images with `paco annotate` first")
    with atomic(folder) as part:
        part.mkdir(parents=True)
        {PICK_A_PIC: _write_pick_a_pic, FOLDERS: _write_folders, JSONL: _write_jsonl}[form](part, pairs, images)


def _write_pick_a_pic(folder: Path, pairs: Sequence[PreferencePair], images: ImageSource) -> None:
    text, number = pa.string(), pa.float64()
    schema = pa.schema(
        {
            "are_different": pa.bool_(), "best_image_uid": text, "caption": text, "has_label": pa.bool_(),
            "image_0_uid": text, "image_0_url": text, "image_1_uid": text, "image_1_url": text, "jpg_0": pa.binary(),
            "jpg_1": pa.binary(), "label_0": number, "label_1": number, "model_0": text, "model_1": text,
            "ranking_id": text, "user_id": text, "num_example_per_prompt": pa.int64(),
        }.items()
    )  # fmt: skip
    counts: dict[str, int] = {}
    for pair in pairs:
        counts[pair.prompt] = counts.get(pair.prompt, 0) + 1
    file, remaining = folder / PARQUET, iter(pairs)
    file.parent.mkdir()
    with pq.ParquetWriter(file, schema) as writer:
        while chunk := list(islice(remaining, ROWS)):
            rows = [_pick_a_pic_row(pair, images, counts[pair.prompt]) for pair in chunk]
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _pick_a_pic_row(pair: PreferencePair, images: ImageSource, examples: int) -> dict[str, Any]:
    jpegs = [encode_image(images.panel(ref), "JPEG", None) for ref in (pair.first, pair.second)]
    return {
        "are_different": True, "best_image_uid": pair.winner, "caption": pair.prompt, "has_label": True,
        "image_0_uid": pair.first, "image_0_url": "", "image_1_uid": pair.second, "image_1_url": "",
        "jpg_0": jpegs[0], "jpg_1": jpegs[1], "label_0": float(pair.is_first_better),
        "label_1": float(not pair.is_first_better), "model_0": "", "model_1": "", "ranking_id": pair.instance_id,
        "user_id": pair.annotator, "num_example_per_prompt": examples,
    }  # fmt: skip


def _write_folders(folder: Path, pairs: Sequence[PreferencePair], images: ImageSource) -> None:
    for side in ("winner", "loser"):
        (folder / side).mkdir()
    for number, pair in enumerate(pairs):
        for side, ref in (("winner", pair.winner), ("loser", pair.loser)):
            (folder / side / f"{number:06d}.png").write_bytes(encode_png(images.panel(ref)))
            write_text(folder / side / f"{number:06d}.txt", pair.prompt)
    rows = (
        {**{f"{side}_file_name": f"{side}/{number:06d}.png" for side in ("winner", "loser")}, "text": pair.prompt}
        for number, pair in enumerate(pairs)
    )
    write_jsonl(folder / "metadata.jsonl", rows)  # with which `datasets` loads one row per pair


def _write_jsonl(folder: Path, pairs: Sequence[PreferencePair], images: ImageSource) -> None:
    (folder / "images").mkdir()
    names: dict[str, str] = {}
    for ref in sorted({ref for pair in pairs for ref in (pair.reference, pair.first, pair.second) if ref}):
        names[ref] = f"images/{digest(['pair', ref], 20)}.png"
        (folder / names[ref]).write_bytes(encode_png(images.panel(ref)))
    write_jsonl(
        folder / "pairs.jsonl",
        (
            {
                "prompt": pair.prompt, "winner": names[pair.winner], "loser": names[pair.loser],
                "reference": names.get(pair.reference), "instance_id": pair.instance_id, "annotator": pair.annotator,
                "winner_id": pair.winner, "loser_id": pair.loser,
            }
            for pair in pairs
        ),
    )  # fmt: skip


def is_pair_file(file: Path) -> bool:
    """Whether a file contains pairs, as the formats ``pick-a-pic`` and ``jsonl`` write them."""
    if file.suffix.lower() == ".parquet" and file.is_file():
        return set(_PICK_KEYS) <= set(pq.read_schema(file).names)
    if file.suffix.lower() in LINES and file.is_file():
        first = next(iter(read_jsonl(file, rejected=lambda _line, _cause: None)), (0, {}))[1]
        return set(_PAIR_KEYS) <= set(first)
    return False


def read_pairs(file: Path, instances: pd.DataFrame, rejected: Rejected) -> list[Annotation]:
    """The rankings that exported pairs came from.

    Args:
        instances: columns ``instance_id``, ``reference``, ``candidates``.
        rejected: collects rows of unknown instances and images, and rankings whose pairs are incomplete or contradict
            each other.
    """
    positions = {
        name: {ref: position for position, ref in enumerate(candidates)}
        for name, _, candidates in instance_rows(instances)
    }
    wins: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for place, row in _pair_rows(file, rejected):
        instance_id, annotator, winner, loser = (str(row.get(key)) for key in _PAIR_KEYS)
        candidates = positions.get(instance_id)
        if candidates is None:
            rejected.add(place, f"instance: there is no instance {instance_id}")
        elif winner not in candidates or loser not in candidates or winner == loser:
            rejected.add(place, f"image: {winner} and {loser} are not two candidates of instance {instance_id}")
        else:
            wins.setdefault((instance_id, annotator), set()).add((candidates[winner], candidates[loser]))
    rankings = []
    for (instance_id, annotator), pairs in wins.items():
        count = len(positions[instance_id])
        num_wins = [sum(winner == position for winner, _ in pairs) for position in range(count)]
        if len(pairs) != count * (count - 1) // 2 or sorted(num_wins) != list(range(count)):
            rejected.add(f"{file}: {instance_id}, {annotator}", f"ranking: its {len(pairs)} pairs are not a ranking")
            continue
        ranking = sorted(range(count), key=lambda position: -num_wins[position])
        rankings.append(unscored(instance_id, annotator, ranking))
    return rankings


def _pair_rows(file: Path, rejected: Rejected) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if file.suffix.lower() != ".parquet":
        yield from read_rows(file, rejected, _PAIR_KEYS)
        return
    for number, row in enumerate(pq.read_table(file, columns=list(_PICK_KEYS)).to_pylist()):
        instance_id, annotator, best, first, second = (row[key] for key in _PICK_KEYS)
        if best in (first, second):  # not in a tie
            loser = second if best == first else first
            yield f"{file}: row {number}", dict(zip(_PAIR_KEYS, (instance_id, annotator, best, loser), strict=True))
