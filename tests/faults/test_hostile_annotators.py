"""The annotation server under inputs that no page of ours sends: each is answered, and no answer is lost or made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from paco_core.data.annotation.queue import AnnotationQueue
from paco_core.data.annotation.server import create_annotation_app
from tests.faults import hostile
from tests.faults.verdicts import Breach, Ledger
from tests.support.annotation_world import body_for, make_world, open_study
from tests.support.serving_fakes import listening


def unsound(queue: AnnotationQueue, before: list[Any]) -> Breach:
    """Whether what was stored before is still there, and what came is a possible answer to one's own instance."""
    stored = queue.store.every()
    if stored[: len(before)] != before:
        return "lost", "an answer that was stored before is gone or another"
    keys = [(answer.annotator, answer.instance_id, answer.revision) for answer in stored]
    if len(set(keys)) != len(keys):
        return "doubled", "an answer is stored twice"
    for answer in stored[len(before) :]:
        is_complete = answer.ranking is None or sorted(answer.ranking) == list(range(4))
        if not is_complete or answer.instance_id not in queue.instances or answer.seconds < 0:
            return "wrong", f"stored {answer}"
    return None


def test_answers(tmp_path: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    make_world(tmp_path)
    queue = open_study(tmp_path, annotators=2, overlap=1)
    page = f"/a/{queue.annotators[0].token}"
    with (
        listening(create_annotation_app(queue)) as url,
        ledger.row("fuzzed body", "annotation server", hostile=True) as row,
    ):
        answer = body_for(hostile.send(url, "GET", f"{page}/view").json(), [0, 1, 2, 3])
        for path, good in (("answers", answer), ("undo", {"instance": "x", "revision": 1})):

            def act(body: bytes, path: str = path) -> None:
                before = queue.store.every()
                reply = hostile.send(url, "POST", f"{page}/{path}", body)
                row.judge(f"{path} {body[:80]!r}", hostile.answered(reply), unsound(queue, before))

            hostile.run_examples(hostile.bodies(good), tries(250, 12), act)
    queue.store.close()
