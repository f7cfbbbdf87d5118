"""Label Studio: export of instances as tasks with a labelling configuration, and import of its JSON export as votes.

The configuration uses the tags ``List`` and ``Ranker`` (labelstud.io/tags/ranker). A task contains its candidates as a
list of items. The result of a ranking is the ids of the items in their new order, below the name of the Ranker.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from paco_core.data.annotation.assignment import candidate_order
from paco_core.data.annotation.votes import Annotation, Votes, instance_rows, is_permutation, unscored
from paco_core.data.tables import parse_numbers, parse_text
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, digest, read_json, write_json, write_text
from paco_core.io.rejected import Rejected
from paco_core.io.shards import encode_png

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.data.annotation.preference_files import ImageSource

RANKER, LIST, VERDICT, CANNOT_TELL = "ranking", "candidates", "verdict", "Cannot tell"
#: The path at which Label Studio serves local files, below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT.
LOCAL_FILES = "/data/local-files/?d="

_REFERENCE = """\
  <View className="reference">
    <Header value="Reference"/>
    <Image name="reference" value="$reference" zoom="true"/>
  </View>
  <Header value="Order the candidates by consistency with the reference (identity, style, logic): best on top"/>"""
_PROMPT = """\
  <Text name="reference" value="$prompt"/>
  <Header value="Order the candidates by how well they show the prompt: best on top"/>"""


def _config(header_tags: str) -> str:
    """The labelling configuration, with the tags of what is shown above the candidates."""
    return f"""\
<View>
  <Style>
    .htx-ranker-item img {{ width: 100%; max-width: 320px; display: block; border-radius: 6px; }}
    .reference {{ max-width: 520px; }}
  </Style>
{header_tags}
  <List name="{LIST}" value="${LIST}" title="Best first"/>
  <Ranker name="{RANKER}" toName="{LIST}"/>
  <Choices name="{VERDICT}" toName="reference" choice="single" showInline="true">
    <Choice value="{CANNOT_TELL}"/>
  </Choices>
</View>
"""


def export_tasks(
    folder: Path,
    instances: pd.DataFrame,
    panels: ImageSource,
    votes: Iterable[Annotation] = (),
    address: str = f"{LOCAL_FILES}paco/",
) -> int:
    """Write ``config.xml``, ``tasks.json`` and ``images/`` into a new folder.

    A task does not reveal grid, seed or position: the file names of pictures are digests, and candidates are in random
    order. Existing rankings become predictions of their annotator.

    Args:
        instances: columns ``instance_id``, ``reference``, ``candidates``; ``prompt`` if references are empty.
        votes: existing rankings.
        address: prefix of ``images/NAME.png`` in the tasks: the path of the folder in Label Studio.

    Returns:
        The number of tasks.

    Raises:
        DataError: if the folder exists, or a picture cannot be read.
    """
    votes_by_instance: dict[str, list[Annotation]] = {}
    for vote in votes:
        votes_by_instance.setdefault(vote.instance_id, []).append(vote)
    rows = instance_rows(instances)
    with atomic(folder) as part:
        (part / "images").mkdir(parents=True)
        for ref in sorted({ref for _, reference, candidates in rows for ref in (reference, *candidates) if ref}):
            (part / "images" / _file(ref)).write_bytes(encode_png(panels.panel(ref)))
        prompts = instances.get("prompt", [""] * len(rows))
        tasks = [
            _task(*row, prompt, votes_by_instance.get(row[0], []), address)
            for row, prompt in zip(rows, prompts, strict=True)
        ]
        write_json(part / "tasks.json", tasks)
        has_references = all(reference for _, reference, _ in rows)
        write_text(part / "config.xml", _config(_REFERENCE if has_references else _PROMPT))
    return len(rows)


def _file(ref: str) -> str:
    return f"{digest(['panel', ref], 20)}.png"


def _task(
    instance_id: str, reference: str, candidates: Sequence[str], prompt: str, votes: Sequence[Annotation], address: str
) -> dict[str, Any]:
    def url(ref: str) -> str:
        return f"{address}images/{quote(_file(ref))}"

    items = [
        {"id": str(n), "title": "", "html": f'<img src="{html.escape(url(candidates[n]))}" alt="">'}
        for n in candidate_order("label-studio", instance_id, len(candidates))
    ]
    return {
        "data": {
            "instance_id": instance_id,
            **({"reference": url(reference)} if reference else {"prompt": prompt}),
            LIST: items,
        },
        "predictions": [{"model_version": vote.annotator, "result": [_result(vote.ranking)]} for vote in votes],
    }


def _result(ranking: Sequence[int]) -> dict[str, Any]:
    return {
        "from_name": RANKER,
        "to_name": LIST,
        "type": "ranker",
        "value": {"ranker": {RANKER: [str(candidate) for candidate in ranking]}},
    }


def read_export(file: Path, sizes: Mapping[str, int], rejected: Rejected) -> Votes:
    """Votes from Label Studio's JSON export (not "JSON-MIN", which does not contain the annotators).

    The name of an annotator is their e-mail address, or ``user-ID``. A skipped task gives no vote, and neither does an
    answer with an unchanged list. If a person answers a task several times, only the last answer is a vote. The counts
    contain all of these.

    Args:
        sizes: number of candidates of each known instance.
        rejected: collects tasks of unknown instances, and annotations that do not rank each candidate once.

    Raises:
        DataError: if the file is not such an export.
    """
    tasks = read_json(file)
    if not isinstance(tasks, list):
        raise DataError(f"{file}: expected a list of tasks, as in Label Studio's JSON export")
    answers: dict[tuple[str, str], tuple[str, list[int] | str]] = {}  # time of the update, and ranking or verdict
    counts = Counter(skipped=0, superseded_answers=0, empty_answers=0, cannot_tell=0)
    for number, task in enumerate(tasks, start=1):
        place = f"{file}: task {number}"
        if not isinstance(task, dict) or not isinstance(task.get("annotations"), list):
            rejected.add(place, "task: has no list of annotations; export the project as JSON, not as JSON-MIN or CSV")
            continue
        try:
            instance_id = _instance(task.get("data"), sizes)
        except DataError as error:
            rejected.add(place, f"instance: {error}")
            continue
        for nth, annotation in enumerate(task["annotations"], start=1):
            try:
                if not isinstance(annotation, dict):
                    raise DataError("annotation: expected an object")
                if annotation.get("was_cancelled"):
                    counts["skipped"] += 1
                    continue
                key = (instance_id, _annotator_name(annotation.get("completed_by")))
                verdict = _ranking(annotation.get("result"), sizes[instance_id])
            except DataError as error:
                rejected.add(f"{place}, annotation {nth}", str(error))
                continue
            updated = str(annotation.get("updated_at", ""))
            answer = (updated, verdict)
            if key in answers:
                counts["superseded_answers"] += 1
            if key not in answers or updated >= answers[key][0]:
                answers[key] = answer
    counts.update(verdict for _, verdict in answers.values() if isinstance(verdict, str))
    return Votes(
        rankings=[unscored(*key, verdict) for key, (_, verdict) in answers.items() if not isinstance(verdict, str)],
        undecided=Counter(instance for (instance, _), (_, verdict) in answers.items() if verdict == "cannot_tell"),
        counts=dict(counts),
    )


def _instance(data: object, sizes: Mapping[str, int]) -> str:
    if not isinstance(data, dict) or "instance_id" not in data:
        raise DataError("its data has no instance_id; import the unchanged tasks.json into Label Studio")
    instance_id = parse_text(data["instance_id"], "instance_id")
    if instance_id not in sizes:
        raise DataError(f"there is no instance {instance_id}; run `dvc repro rankings`")
    return instance_id


def _annotator_name(completed_by: object) -> str:
    """The name of an annotator, from the forms that exports use."""
    if isinstance(completed_by, dict):
        completed_by = completed_by.get("email") or completed_by.get("id")
    if isinstance(completed_by, str) and completed_by.isdecimal():
        completed_by = int(completed_by)
    if isinstance(completed_by, int) and not isinstance(completed_by, bool):
        return f"user-{completed_by}"
    if isinstance(completed_by, str) and completed_by:
        return completed_by
    raise DataError(f"annotation: completed_by is {completed_by!r}; expected an e-mail address or an id")


def _ranking(results: object, count: int) -> list[int] | str:
    """The ranking of one annotation, or the name of the count for an annotation without a ranking."""
    result_list = results if isinstance(results, list) else []
    raw_values: list[Any] = [result.get("value") for result in result_list if isinstance(result, dict)]
    values: list[dict[str, Any]] = [value for value in raw_values if isinstance(value, dict)]
    if any(CANNOT_TELL in value.get("choices", ()) for value in values):
        return "cannot_tell"
    rankers = [value["ranker"] for value in values if "ranker" in value]
    if not rankers:
        return "empty_answers"
    candidate_ids = rankers[-1].get(RANKER) if isinstance(rankers[-1], dict) else None
    if not isinstance(candidate_ids, list):
        raise DataError(f"annotation: its ranker is not named {RANKER!r}; use the unchanged config.xml")
    ranking = parse_numbers(candidate_ids)
    if not isinstance(ranking, list) or not is_permutation(ranking, count):
        raise DataError(f"ranking: {candidate_ids!r} does not order candidates 0 to {count - 1}, each once")
    return ranking
