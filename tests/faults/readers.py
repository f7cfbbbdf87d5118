"""Every kind of file that the project reads, how it is read, and what a sound value of it looks like."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paco_core.io.rejected import Rejected

Sound = Callable[[Any], str | None]

RANK_BENCH = "rank_bench/consistency_full_rank.jsonl"


def anything(_value: Any) -> None:
    """Whatever can be read at all is possible; DVC's checksum tells it from the original."""


@dataclass(frozen=True)
class Kind:
    """A kind of file: one of them in a finished project, and its reader.

    ``names``: what a clear error names, the file's own name unless said otherwise.
    """

    name: str
    file: str
    read: Callable[[Path], Any]
    sound: Sound = anything
    names: tuple[str, ...] = ()
    form: str = "bytes"  # "jsonl", "json", "yaml" or "parquet" have values of wrong types, too

    def named(self) -> tuple[str, ...]:
        return self.names or (Path(self.file).name,)


def _prompts(root: Path) -> Any:
    from paco_core.data.records.records import read_prompts

    return read_prompts(root / "data/prompts/prompts.jsonl")


def safe_ids(records: Iterable[Any]) -> str | None:
    """Ids become names of files: none may lead elsewhere, hide, or be too long for a name."""
    for record in records:
        idx = record.idx
        if idx in ("", ".", "..") or idx.startswith(".") or len(idx.encode("utf-8", "replace")) > 240:
            return f"accepted the id {idx[:40]!r}"
        if any(sign in idx for sign in "/\\\0\n") or not idx.isprintable():
            return f"accepted the id {idx[:40]!r}"
    return None


def _edits(root: Path) -> Any:
    from paco_core.data.records.edit_records import read_edit_prompts

    return read_edit_prompts(root / "data/edit_prompts")[0]


#: Size and digest of the pixels of each grid of the sound shards.
PAINTED: dict[str, tuple[tuple[int, int], str]] = {}


def _index(root: Path) -> Any:
    from paco_core.io.shards import ShardReader

    reader = ShardReader.below(root / "data/grids")
    found = {name: reader.read(name) for name in reader.index["id"]}
    read = {name: (image.size, hashlib.md5(image.tobytes()).hexdigest()) for name, image in found.items()}
    PAINTED.update(read if not PAINTED else {})  # the sound shard is read first
    return read


def pictures(found: dict[str, tuple[tuple[int, int], str]]) -> str | None:
    """Each picture has the md5 of pixels that a sound shard had under this name."""
    known = {digest for _, digest in PAINTED.values()}
    if not found:
        return "no picture is missed"
    bad = [name for name, (_, digest) in found.items() if digest not in known]
    return f"picture {bad[0]}: pixels that were never painted" if bad else None


def _rankings(root: Path) -> Any:
    from paco_core.data.annotation.votes import COLUMNS, from_table
    from paco_core.io.files import read_table

    return from_table(read_table(root / "data/annotations/rankings.parquet", require=COLUMNS))


def orders(found: Iterable[Any]) -> str | None:
    for vote in found:
        if sorted(vote.ranking) != list(range(len(vote.ranking))):
            return f"a ranking {vote.ranking} that is no order"
    return None


def _examples(root: Path) -> Any:
    from paco_core.data.records.panels import PanelStore
    from paco_core.reward_model.examples import read_examples

    panel = PanelStore.below(root / "data/grids", root / "data/pairs").panel
    found = read_examples(root / "data/cot_labels/train.parquet", panel, "theme")
    return [(example.id, example.answer, example.instruction) for example in found]


def _lock(root: Path) -> Any:
    from dvc_project.lockfile import Lock

    return Lock.read(root)


def _dvc_lock(root: Path) -> Any:
    from dagster_dvc import DvcProject

    return DvcProject(root).lock()


def _dvc_yaml(root: Path) -> Any:
    from dagster_dvc import DvcProject

    return sorted(DvcProject(root).stages)


def _params(root: Path) -> Any:
    from paco_core.config.params import load

    return load(root / "params.yaml")


def numbers(params: Any) -> str | None:
    """No NaN or infinity anywhere in the parameters."""

    def walk(value: Any) -> bool:
        if isinstance(value, dict):
            return any(map(walk, value.values()))
        if isinstance(value, list | tuple):
            return any(map(walk, value))
        return isinstance(value, float) and not math.isfinite(value)

    return "accepted a number that is none" if walk(params.model_dump()) else None


def _profile(root: Path) -> Any:
    from paco_core.config import profiles

    return profiles.read(root, "smoke")


def _adapter(root: Path) -> Any:
    """As `reward_merged` and in-process scoring read it."""
    from paco_core.reward_model import lora
    from paco_core.reward_model.network import Network

    network = Network.load(root / "data/zoo/qwen2_5_vl", device="cpu", dtype="float32")
    lora.load(network.model, root / "data/reward_lora/adapter")
    found = {name: tensor for name, tensor in network.model.named_parameters() if "lora_" in name}
    assert found
    return {name: tensor.detach().numpy().tobytes() for name, tensor in found.items()}


def _merged(root: Path) -> Any:
    from paco_core.reward_model.network import Network

    network = Network.load(root / "data/reward_merged", device="cpu", dtype="float32")
    return {name: tensor.detach().numpy().tobytes() for name, tensor in network.model.state_dict().items()}


def _checkpoint(root: Path) -> Any:
    from paco_core.training.checkpoint import latest

    found = latest(root / "checkpoint", "recipe", 9, ("rows",))
    return found and (
        found.done,
        {name: tensor.numpy().tobytes() for name, tensor in found.tensors.items()},
        found.notes,
    )


def next_epoch(found: Any) -> str | None:
    """An epoch to go on after and all tensors; or none, and the training starts afresh."""
    if found is None:
        return None
    epoch, tensors, notes = found
    if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch != 3 or set(notes) != {"rows"}:
        return f"would go on after epoch {epoch!r} with {notes!r}"
    return None if set(tensors) == {"adapter/a", "adapter/b"} else "lacks a tensor"


def _reward_state(root: Path) -> Any:
    import torch

    from paco_core.reward_model.checkpoint import restore
    from paco_core.training.processes import Processes
    from paco_core.training.updates import Updates

    weights = {"a": torch.nn.Parameter(torch.zeros(3, 4))}
    updates = Updates(weights, torch.optim.AdamW(weights.values()), 1.0, Processes())
    done = restore(root / "reward", "key", weights, updates)
    return done and (done.step, done.epoch, done.log, weights["a"].detach().numpy().tobytes())


def next_step(found: Any) -> str | None:
    if found is None:
        return None
    step, epoch, log, _ = found
    sane = (step, epoch) == (7, 1) and isinstance(log, list)
    return None if sane else f"would go on after step {step!r} of epoch {epoch!r}"


def _golden(root: Path) -> Any:
    from paco_core.reward_model.golden import read_golden

    return [(golden.query.instruction, golden.score) for golden in read_golden(root / "data/reward_merged")]


def probabilities(found: list[tuple[str, float]]) -> str | None:
    bad = [score for _, score in found if not 0 <= score <= 1]
    return f"a score of {bad[0]}" if bad else None


def _scores(root: Path) -> Any:
    from paco_core.serving.cache import ScoreCache

    return ScoreCache(root / "scores.db").get(KEYS)


def known_scores(found: dict[bytes, float]) -> str | None:
    bad = [score for score in found.values() if not (isinstance(score, float) and 0 <= score <= 1)]
    return f"a cached score of {bad[0]!r}" if bad else None


def _answers(root: Path) -> Any:
    from paco_core.data.annotation.store import AnswerStore

    with AnswerStore(root / "answers.sqlite") as store:
        return [(answer.instance_id, answer.verdict, answer.ranking) for answer in store.every()]


def _chat_journal(root: Path) -> Any:
    from paco_core.data.llm.journal import Journal

    with Journal(root / "journal.jsonl") as journal:
        return list(journal.rows)


def _run_journal(root: Path) -> Any:
    from paco_core.io.files import DataError
    from paco_core.runtime.tracking.journal import DamagedJournal, RunJournal

    try:
        return [event for event, _ in RunJournal(root / "tracking").waiting(0)]
    except DamagedJournal as error:
        raise DataError(str(error)) from None


def _record(root: Path) -> Any:
    from paco_core.runtime.provenance.records import recorded

    return recorded(root, "prompts", "recipe")


def _sharegpt(root: Path) -> Any:
    return _import(root, "import_pairs", "paco_dataset")


def _bench(root: Path) -> Any:
    return _import(root, "import_benchmark", "rank_bench")


def _import(root: Path, act: str, name: str) -> Any:
    import shutil

    from paco_core.exchange import imported

    out = root / "imported"
    try:
        getattr(imported, act)(root / name, out)
        return {path.name: path.read_bytes() for path in sorted(out.glob("*")) if path.is_file()}
    finally:
        shutil.rmtree(out, ignore_errors=True)


def counted(found: dict[str, bytes]) -> str | None:
    """Rows that were left out are counted with their reason."""
    if not found["rejected.jsonl"].strip():
        return None  # another word in a text
    return None if json.loads(found["summary.json"]) else "nothing is counted"


def _edit_bench(root: Path) -> Any:
    from paco_core.benchmarks.public_files import read_edit_bench

    cases, _ = read_edit_bench(root / "edit_bench")
    return [(case.id, case.instruction, [image.tobytes() for image in case.pictures()]) for case in cases]


def _t2is(root: Path) -> Any:
    from paco_core.data.prompts.prompts import imported

    return imported(root / "t2is.jsonl", ("2x2",), 4)


def kept(made: Any) -> str | None:
    """Records that were left out are counted with their line and cause; the others are sound."""
    if len(made.rejected) != made.figures["rejected"] or not all(cause for _, cause in made.rejected):
        return "nothing is counted"
    return safe_ids(made.records)


def _label_studio(root: Path) -> Any:
    from paco_core.data.annotation.label_studio import read_export

    rejected = Rejected()
    found = read_export(root / "export.json", SIZES, rejected).rankings
    return [(vote.instance_id, vote.annotator, vote.ranking) for vote in found], rejected


def _imported_rankings(root: Path) -> Any:
    from paco_core.data.annotation.imported import read_rankings

    rejected = Rejected()
    found = list(read_rankings(root / "rankings.jsonl", SIZES, rejected))
    return [(vote.instance_id, vote.annotator, vote.ranking) for vote in found], rejected


def votes(found: tuple[list[tuple[str, str, Any]], Rejected]) -> str | None:
    """Rankings that were left out have a cause; the others are orders."""
    if not all(cause for _, cause in found[1]):
        return "a ranking is left out without a cause"
    bad = [ranking for _, _, ranking in found[0] if ranking is not None and sorted(ranking) != [0, 1, 2, 3]]
    return f"a ranking {bad[0]} that is no order" if bad else None


def _triples(root: Path) -> Any:
    from paco_core.data.prompts.edit_prompts import read_rows

    return read_rows(root / "triples.jsonl").records


ADAPTER, EPOCH = "data/reward_lora/adapter", "checkpoint/checkpoint-00003"
STEP = "reward/checkpoint-00007"
KEYS = [bytes([n] * 16) for n in range(40)]
SIZES = {f"i{n}": 4 for n in range(6)}


def kinds() -> list[Kind]:
    """One of each kind of file, below a root made by ``corpus`` in test_damaged_files.py."""
    return [
        Kind("JSON Lines of prompts", "data/prompts/prompts.jsonl", _prompts, safe_ids, form="jsonl"),
        Kind("JSON Lines of edits", "data/edit_prompts/edits.jsonl", _edits, safe_ids, form="jsonl"),
        Kind("imported T2IS prompts", "t2is.jsonl", _t2is, kept, form="jsonl"),
        Kind("imported edits", "triples.jsonl", _triples, safe_ids, form="jsonl"),
        Kind("imported ShareGPT pairs", "paco_dataset/train.jsonl", _sharegpt, counted, ("paco_dataset",), "jsonl"),
        Kind("ShareGPT's dataset_info", "paco_dataset/dataset_info.json", _sharegpt, counted, form="json"),
        Kind("imported ConsistencyRank-Bench", RANK_BENCH, _bench, counted, ("rank_bench",), "jsonl"),
        Kind("imported EditReward-Bench", "edit_bench/data.parquet", _edit_bench, form="parquet"),
        Kind("imported rankings", "rankings.jsonl", _imported_rankings, votes, form="jsonl"),
        Kind("export of Label Studio", "export.json", _label_studio, votes, form="json"),
        Kind("index of a tar shard", "data/grids/shard-0/index.parquet", _index, pictures, ("shard-0",), "parquet"),
        Kind("tar shard", "data/grids/shard-0/images.tar", _index, pictures),
        Kind("Parquet of rankings", "data/annotations/rankings.parquet", _rankings, orders, ("rankings",), "parquet"),
        Kind("Parquet of labelled pairs", "data/cot_labels/train.parquet", _examples, form="parquet"),
        Kind("dvc.lock, as paco reads it", "dvc.lock", _lock, form="yaml"),
        Kind("dvc.lock, as Dagster reads it", "dvc.lock", _dvc_lock, form="yaml"),
        Kind("dvc.yaml, as Dagster reads it", "dvc.yaml", _dvc_yaml, form="yaml"),
        Kind("params.yaml", "params.yaml", _params, numbers, form="yaml"),
        Kind("profile", "profiles/smoke.yaml", _profile, numbers, form="yaml"),
        Kind("adapter of the reward", f"{ADAPTER}/adapter_model.safetensors", _adapter, names=("adapter",)),
        Kind("configuration of an adapter", f"{ADAPTER}/adapter_config.json", _adapter, names=("adapter",)),
        Kind("merged reward model", "data/reward_merged/model.safetensors", _merged, names=("reward_merged",)),
        Kind("checkpoint of a policy", f"{EPOCH}/tensors.safetensors", _checkpoint, next_epoch, ("checkpoint-",)),
        Kind("its state", f"{EPOCH}/state.json", _checkpoint, next_epoch, ("checkpoint-",), "json"),
        Kind("checkpoint of the reward", f"{STEP}/tensors.safetensors", _reward_state, next_step, ("checkpoint-",)),
        Kind("the reward's state", f"{STEP}/state.json", _reward_state, next_step, ("checkpoint-",), "json"),
        Kind("golden pairs", "data/reward_merged/golden.json", _golden, probabilities, form="json"),
        Kind("cache of scores", "scores.db", _scores, known_scores),
        Kind("people's answers", "answers.sqlite", _answers),
        Kind("journal of chat answers", "journal.jsonl", _chat_journal, form="jsonl"),
        Kind("journal of a run", "tracking/events.jsonl", _run_journal, form="jsonl"),
        Kind("record of a run", "data/runs/prompts.json", _record, form="json"),
    ]  # fmt: skip
