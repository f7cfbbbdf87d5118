"""The benchmark section of a policy's model card.

Training writes the card before any benchmark can measure the policy, so :func:`pending_section` says how to get the
result. `paco push` and `paco fetch` replace that section in their copy of the card (:func:`replace_section`).
"""

from __future__ import annotations

from paco_core.io.paths import metrics_file

HEADING = "## Benchmark"


def pending_section(stage: str) -> str:
    """The section of a policy that the benchmark has not measured.

    Args:
        stage: stage of the benchmark, for example ``t2is``, or ``round_t2is@1`` for a policy of a round.
    """
    name, _, item = stage.partition("@")
    file = metrics_file(name, item).as_posix()
    copies = "" if item else "\n`paco push` and `paco fetch` then write it into the card of the copy."
    return f"""{HEADING}

**This card contains no benchmark result.** The benchmark runs after the training. To measure these weights, run
`dvc repro {stage}` in the project. The result is in `{file}`.{copies}
"""


def replace_section(card: str, section: str) -> str:
    """The card with another benchmark section; a card without such a section stays as it is."""
    head, heading, tail = card.partition(f"\n{HEADING}\n")
    if not heading:
        return card
    _, following, remainder = tail.partition("\n## ")
    return f"{head}\n{section}{following}{remainder}"
