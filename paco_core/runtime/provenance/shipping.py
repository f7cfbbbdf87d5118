"""The story that travels with a policy: ``provenance.json`` in its folder and a part of its model card.

It holds md5s, parameters, code and the judge by fingerprint, all of them functions of the inputs, and no run: else the
policy's own md5 would change with every run. Runs are recorded beside it (:mod:`paco_core.runtime.provenance.records`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dvc_project.lockfile import Inputs, Lock
from paco_core.io.files import read_text, write_json, write_text
from paco_core.runtime.code.stage_code import StageCode
from paco_core.runtime.provenance.chain import Provenance, Run, is_metrics, of_stage_now
from paco_core.runtime.provenance.text import markdown
from paco_core.runtime.provenance.verify import SHIPPED

HEADING = "## Provenance of"


def ship(
    folder: Path,
    out: Path,
    root: Path,
    label: str,
    command: str,
    recipe: Inputs | None,
    made_of: StageCode,
    endpoint: str | None,
) -> str | None:
    """Write ``folder/provenance.json`` and the story into the model card; returns what is not known, if anything.

    Args:
        folder: what becomes the out when the stage ends. A story that ``adapter/README.md`` in it holds already, the
            card, is replaced.
        out: that out, relative to the project root.
        label: the running stage, ``policies@flux_t2is``; ``dvc.lock`` does not record this run yet.
        recipe: what it read, None when that is not known.
        made_of: its code, as it was when the stage started.
        endpoint: names of the servers that scored, with their fingerprints.
    """
    if recipe is None:
        return f"{label} is not a stage of dvc.yaml, or lacks an input: its provenance is not known"
    shipped = _without_figures(
        of_stage_now(
            label, command, recipe, out.as_posix(), Lock.read(root), run=Run(endpoint=endpoint), made_of=made_of
        )
    )
    write_json(folder / SHIPPED, shipped.as_dict())
    card = folder / "adapter" / "README.md"
    text = read_text(card).partition(f"\n{HEADING}")[0].rstrip("\n")
    write_text(card, f"{text}\n\n{markdown(shipped, level=2)}")
    return None


def _without_figures(shipped: Provenance) -> Provenance:
    """Metrics files may hold seconds, so their md5s say nothing of where the policy comes from."""
    links = [replace(k, outs={p: md5 for p, md5 in k.outs.items() if not is_metrics(p)}) for k in shipped.links]
    return replace(shipped, links=tuple(links))
