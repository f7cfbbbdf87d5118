"""Checks of the data stages' outs: pure functions from the data folder to a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from paco_core.data.annotation.rankings import expected_instances
from paco_core.data.pairs.answers import validation_error, written_validation_error
from paco_core.data.pairs.editing import read_generated_edits
from paco_core.data.pairs.leakage import grids_in_table, measure_leakage, picture_md5s
from paco_core.data.pairs.pairs import IMBALANCE
from paco_core.data.records import prompt_text
from paco_core.data.records.edit_records import of_part, read_edit_prompts
from paco_core.data.records.panels import shard_of
from paco_core.data.records.prompt_content import prompt_key
from paco_core.data.records.records import PromptRecord, read_prompts
from paco_core.io import paths
from paco_core.io.check_report import CheckFinding, check, skipped
from paco_core.io.files import DataError, md5_of, read_json, read_table
from paco_core.io.shards import TAR, ShardReader

SAMPLED_PICTURES = 64
FAILED_SHARE = 0.05  # of the pairs may have no answer
PARTS = ("train", "validation")


@check("ERROR")
def prompts_are_valid(data: Path) -> CheckFinding:
    """Every prompt is a valid record with its panels marked, and no prompt occurs twice."""
    records = read_prompts(data / paths.PROMPTS.name / "prompts.jsonl", none_allowed=True)
    broken = [record.idx for record in records if _broken(record)]
    repeated = len(records) - len({prompt_key(record) for record in records})
    return CheckFinding(
        not broken and not repeated,
        f"{len(records)} prompts; {len(broken)} do not mark their panels, {repeated} repeat another's text",
        {"prompts": len(records), "broken": len(broken), "repeated": repeated},
    )


@check("ERROR")
def diverse_prompts_are_a_subset(data: Path) -> CheckFinding:
    """Every diverse prompt is one of the prompts, and no subcategory was emptied."""
    before = read_prompts(data / paths.PROMPTS.name / "prompts.jsonl", none_allowed=True)
    after = read_prompts(data / paths.DIVERSE_PROMPTS.name / "prompts.jsonl", none_allowed=True)
    records_before = {record.idx: record for record in before}
    strange = [record.idx for record in after if records_before.get(record.idx) != record]
    emptied = {(r.category, r.task_name) for r in before} - {(r.category, r.task_name) for r in after}
    return CheckFinding(
        not strange and not emptied,
        f"{len(after)} of {len(before)} prompts kept; {len(strange)} of unknown origin, "
        f"{len(emptied)} subcategories emptied",
        {"kept": len(after), "unknown": len(strange), "emptied_subcategories": len(emptied)},
    )


@check("ERROR")
def edit_prompts_are_held_apart(data: Path) -> CheckFinding:
    """Both parts hold editing prompts, every reference picture is there, and none is in both parts."""
    records, references = read_edit_prompts(data / paths.EDIT_PROMPTS.name, none_allowed=True)
    for record in records[:SAMPLED_PICTURES]:
        references(record)
    if not records:
        return skipped("there are no editing prompts (edit_prompts.source: none)")
    train, unseen = of_part(records, "train"), of_part(records, "unseen")
    shared = set.intersection(*({name for r in part for name in r.references} for part in (train, unseen)))
    return CheckFinding(
        bool(train) and bool(unseen) and not shared,
        f"{len(train)} editing prompts to train on, {len(unseen)} unseen; {len(shared)} pictures in both",
        {"train": len(train), "unseen": len(unseen), "pictures_in_both": len(shared)},
    )


@check("ERROR")
def painted_edits_are_of_training_prompts(data: Path) -> CheckFinding:
    """No painted edit is of an unseen prompt, no id comes twice, and a sample of the pictures opens."""
    records, _ = read_edit_prompts(data / paths.EDIT_PROMPTS.name, none_allowed=True)
    edits, pictures = read_generated_edits(data / paths.EDITS.name)
    for edit in edits[:SAMPLED_PICTURES]:
        pictures.read(edit.id)
    trained = {record.idx for record in of_part(records, "train")}
    strange = [edit.id for edit in edits if edit.prompt_id not in trained]
    repeated = len(edits) - len({edit.id for edit in edits})
    return CheckFinding(
        not strange and not repeated,
        f"{len(edits)} generated edits; {len(strange)} of prompts that are not for training, {repeated} duplicate ids",
        {"painted": len(edits), "strange": len(strange), "repeated": repeated},
    )


@check("ERROR")
def grids_are_complete(data: Path, shard: int | None = None, shards: Sequence[int] = ()) -> CheckFinding:
    """Every diverse prompt has a grid for each seed, and a sample of the pictures reads as it was written.

    With ``shard``, one of ``shards``: its prompts and its pictures only, for the others may not be painted yet.
    """
    prompts = read_prompts(data / paths.DIVERSE_PROMPTS.name / "prompts.jsonl", none_allowed=True)
    if shard is None:
        reader = ShardReader.below(data / paths.GRIDS.name)
    else:
        prompts = shard_of(prompts, shard, shards)
        reader = ShardReader([data / paths.GRIDS.name / f"shard-{shard}"])
    index = reader.index.reset_index(drop=True)
    step = max(1, len(index) // SAMPLED_PICTURES)
    sample = index.iloc[::step]
    damaged = [row["id"] for row in sample.to_dict("records") if _md5(reader, row) != row["md5"]]
    if index.empty:
        return skipped("no grid was generated: grids.seeds is empty, or there are no prompts")
    seeds = set(index["seed"])
    have = set(zip(index["prompt_id"], index["seed"], strict=True))
    want = {(record.idx, seed) for record in prompts for seed in seeds}
    return CheckFinding(
        have == want and len(index) == len(want) and not damaged,
        f"{len(index)} grids of {len(prompts)} prompts and {len(seeds)} seeds; {len(want - have)} missing, "
        f"{len(have - want)} of other prompts, {len(damaged)} of {len(sample)} sampled pictures damaged",
        {"grids": len(index), "missing": len(want - have), "foreign": len(have - want), "damaged": len(damaged)},
    )


@check("ERROR")
def rankings_are_complete(data: Path) -> CheckFinding:
    """Every prompt has all its instances (48 at 2x2 and four seeds), each once, of panels that exist."""
    index = ShardReader.below(data / paths.GRIDS.name).index.reset_index(drop=True)
    table = read_table(data / paths.RANKINGS.name / "instances.parquet")
    if index.empty and table.empty:
        return skipped("there are no grids, and so nothing to rank")
    counts = Counter(table["prompt_id"])
    wrong = [
        str(prompt_id)
        for prompt_id, grids in index.groupby("prompt_id")
        if counts[prompt_id] != expected_instances(str(grids["layout"].iloc[0]), len(grids))
    ]
    repeated = int(table["instance_id"].duplicated().sum())
    unknown = grids_in_table(table) - set(index["id"])
    return CheckFinding(
        not wrong and not repeated and not unknown and set(counts) == set(index["prompt_id"]),
        f"{len(table)} instances of {len(counts)} prompts; {len(wrong)} prompts with a wrong number, "
        f"{repeated} repeated ids, {len(unknown)} unknown grids",
        {"instances": len(table), "wrong": len(wrong), "repeated": repeated, "unknown_grids": len(unknown)},
    )


@check("ERROR")
def annotations_order_all_candidates(data: Path) -> CheckFinding:
    """Every ranking orders each candidate once (else the next stages wait), and every instance is ranked."""
    instances = read_table(data / paths.RANKINGS.name / "instances.parquet")
    rankings = read_table(data / paths.ANNOTATIONS.name / "rankings.parquet")
    if instances.empty:
        return skipped("there are no instances to rank")
    sizes = {key: len(refs) for key, refs in zip(instances["instance_id"], instances["candidates"], strict=True)}
    rows = zip(rankings["instance_id"], rankings["ranking"], strict=True)
    invalid = sum(sorted(ranking) != list(range(sizes.get(key, -1))) for key, ranking in rows)
    unranked = len(sizes.keys() - set(rankings["instance_id"]))
    share = "" if not unranked else f" ({unranked / len(sizes):.1%})"
    return CheckFinding(
        not invalid and not unranked,
        f"{len(rankings)} rankings; {invalid} invalid, {unranked} of {len(sizes)} instances unranked{share}",
        {"rankings": len(rankings), "invalid": invalid, "unranked": unranked},
        "ERROR" if invalid else "WARN",
    )


@check("WARN")
def annotators_agree(data: Path) -> CheckFinding:
    """Nobody's rankings are doubtful: all agree with the others better than chance."""
    agreement = read_json(data / paths.ANNOTATIONS.name / "agreement.json")
    people = agreement["annotators"]
    if not people:
        return skipped(f"nobody ranked anything (annotations.source: {agreement['source']})")
    doubtful = [f"{person['name']} ({'; '.join(person['doubts'])})" for person in people if person["doubts"]]
    measured = (
        f"Kendall's W {agreement['kendall_w']:.2f}" if agreement["kendall_w"] is not None else "no overlap to measure"
    )
    return CheckFinding(
        not doubtful,
        f"{len(people)} annotators, {measured}; doubtful: {', '.join(doubtful) or 'nobody'}",
        {"annotators": len(people), "doubtful": len(doubtful)},
    )


@check("WARN")
def labels_are_balanced(data: Path) -> CheckFinding:
    """The larger class of the training pairs exceeds the smaller one by 3% at most."""
    labels = Counter(read_table(data / paths.PAIRS.name / "train.parquet")["label"])
    yes, no = labels["Yes"], labels["No"]
    if not labels:
        return skipped("there are no training pairs")
    passed = min(yes, no) > 0 and max(yes, no) <= min(yes, no) * (1 + IMBALANCE)
    return CheckFinding(passed, f"{yes} consistent and {no} inconsistent training pairs", {"yes": yes, "no": no})


@check("ERROR")
def benchmark_is_held_out(data: Path) -> CheckFinding:
    """No prompt and no picture of the benchmark occurs in training or validation.

    Where the parameters say ``pairs.leakage: report``, as a split by instance needs, it warns and blocks nothing.
    """
    pairs, prompts = data / paths.PAIRS.name, data / paths.DIVERSE_PROMPTS.name / "prompts.jsonl"
    leaked = measure_leakage(
        read_table(pairs / "benchmark.parquet"),
        {part: read_table(pairs / f"{part}.parquet") for part in PARTS},
        {record.idx: record.prompt for record in read_prompts(prompts, none_allowed=True)},
        picture_md5s(ShardReader.below(data / paths.GRIDS.name, pairs).index),
    )
    allowed = read_json(pairs / "summary.json")["leakage"] == "report"
    return CheckFinding(
        not leaked,
        f"{leaked}; split by prompt (pairs.split) to have none" if leaked else str(leaked),
        {
            "prompts": len(leaked.prompts),
            "pictures": len(leaked.pictures),
            "train_and_validation": len(leaked.train_and_validation),
        },
        "WARN" if allowed else "ERROR",
    )


@check("ERROR")
def answers_agree_with_labels(data: Path) -> CheckFinding:
    """Every answer begins with its label, and gives reasons unless it came so; no pair was lost, and few have none."""
    wrong = missing = answers = failed = 0
    for part in PARTS:
        labelled = read_table(data / paths.COT_LABELS.name / f"{part}.parquet")
        rejected = read_table(data / paths.COT_LABELS.name / f"{part}_failed.parquet")
        ids = set(labelled["pair_id"]) | set(rejected["pair_id"])
        missing += len(set(read_table(data / paths.PAIRS.name / f"{part}.parquet")["pair_id"]) - ids)
        rows = zip(labelled["answer"], labelled["label"], labelled["engine"] == "given", strict=True)
        wrong += sum(
            (validation_error if is_imported else written_validation_error)(text, label) is not None
            for text, label, is_imported in rows
        )
        answers, failed = answers + len(labelled), failed + len(rejected)
    if not (answers or failed or missing):
        return skipped("there are no pairs to answer")
    return CheckFinding(
        not wrong and not missing and answers > 0 and failed <= FAILED_SHARE * (answers + failed),
        f"{answers} answers, {wrong} contradicting their label; {failed} pairs counted as failed "
        f"(at most {FAILED_SHARE:.0%} may be), {missing} lost",
        {"answers": answers, "wrong": wrong, "failed": failed, "lost": missing},
    )


def _broken(record: PromptRecord) -> bool:
    try:
        prompt_text.parse_prompt(record.prompt, record.layout)
    except DataError:
        return True
    return False


def _md5(reader: ShardReader, row: dict[Hashable, Any]) -> str:
    """MD5 of a picture's bytes as they lie in the shard; the picture is decoded as well."""
    reader.read(row["id"])
    with (Path(row["folder"]) / TAR).open("rb") as tar:
        tar.seek(row["offset"])
        return md5_of(tar.read(row["size"]))
