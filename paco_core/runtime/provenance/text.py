"""A provenance as text: lines for a terminal, and the files that are shipped with a policy.

A policy's folder contains ``provenance.json``, and its adapter contains ``PROVENANCE.md``. Both contain md5s,
parameters, code and the fingerprint of the reward model, which depend on the inputs only. They name no run: else the
policy's own md5 would change with every run. :mod:`paco_core.runtime.provenance.records` records the runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dvc_project.lockfile import Inputs, Lock
from paco_core.io.files import read_text_file, write_json, write_text
from paco_core.io.text_table import text_table
from paco_core.runtime.code.stage_code import StageCode
from paco_core.runtime.provenance.chain import Link, Provenance, Run, is_metrics, of_stage_now
from paco_core.runtime.provenance.verify import SHIPPED
from paco_core.runtime.tracking import flatten

HEADING = "## Provenance"
PROVENANCE_FILE = "PROVENANCE.md"
PROVENANCE_TEXT = f"""\
[{PROVENANCE_FILE}]({PROVENANCE_FILE}) lists each stage that led to these weights, with the digests of its inputs from
`dvc.lock`, its parameters, and the versions of its code and libraries."""


def provenance_text(provenance: Provenance) -> str:
    """A table with one row per stage: its outs, inputs, run and commit. Below it, the files that no stage made."""
    head = ["stage", "made", "reads", "MLflow run", "git commit"]
    rows = [_plain_row(link) for link in provenance.links]
    external = {path for link in provenance.links for path in {**link.given, **link.made_of.files}}
    version = f", version {provenance.md5[:12]}" if provenance.md5 else ""
    return "\n".join(
        [
            f"{provenance.path}{version}: each line was made from the lines that it reads",
            "",
            *text_table([head, *rows]),
            *(["", f"made by no stage: {', '.join(sorted(external))}"] if external else []),
            "",
            "with --json: whole md5s, parameters, code and the page of each run",
        ]
    )


def _plain_row(link: Link) -> list[str]:
    outs = [f"{path} {md5[:8]}" for path, md5 in link.outs.items() if "/metrics/" not in path]
    run = link.run or Run()
    commit = (run.git_commit or "")[:8] + ("+" if run.git_dirty else "")
    return [link.stage, ", ".join(outs) or "this one", ", ".join(link.reads), (run.mlflow_run or "")[:8], commit]


def provenance_markdown(provenance: Provenance, level: int = 1) -> str:
    """The complete provenance in Markdown; ``level`` is the level of its heading."""
    mark = "#" * level
    version = f", version `{provenance.md5}`" if provenance.md5 else ""
    runs = any(link.run is not None and replace(link.run, endpoint=None) != Run() for link in provenance.links)
    columns = ["stage", "made", "reads", *(["MLflow run", "git commit", "Dagster run"] if runs else [])]
    runs_hint = (
        f"Runs and commits are recorded beside it: `paco provenance {provenance.path}` in its project names them."
    )
    lines = [
        f"{mark} Provenance of `{provenance.path}`",
        "",
        f"Made by `{provenance.links[0].stage}`{version}. Each line was made from the lines that it reads; md5s are "
        f"those of DVC.{'' if runs else ' ' + runs_hint}",
        "",
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *(f"| {' | '.join(_row(link)[: len(columns)])} |" for link in provenance.links),
    ]
    external = {p: md5 for link in provenance.links for p, md5 in {**link.given, **link.made_of.files}.items()}
    if external:
        lines += [
            "",
            f"{mark}# Given, made by no stage",
            "",
            *(f"- `{p}` `{md5}`" for p, md5 in sorted(external.items())),
        ]
    for link in provenance.links:
        lines += ["", f"{mark}# {link.stage}", "", *_details(link)]
    return "\n".join(lines) + "\n"


def _row(link: Link) -> list[str]:
    outs = "<br>".join(f"`{p}` `{md5[:12]}`" for p, md5 in link.outs.items() if "/metrics/" not in p)
    run = link.run
    page = "" if run is None or run.mlflow_run is None else f"`{run.mlflow_run[:12]}`"
    if run is not None and run.mlflow_url:
        page = f"[{page}]({run.mlflow_url})"
    commit = f"`{run.git_commit[:12]}`" if run and run.git_commit else ""
    commit += " with changes not committed" if run and run.git_dirty else ""
    dagster = f"`{run.dagster_run[:8]}`" if run and run.dagster_run else ""
    reads = ", ".join(link.reads)
    return [link.stage, outs or "this one", reads, page, commit, dagster]


def _details(link: Link) -> list[str]:
    lines = [f"`{link.command}`, recipe `{link.recipe}`"]
    if link.run and link.run.endpoint:
        lines.append(f"\nScored by the endpoint `{link.run.endpoint}`.")
    if link.inputs:
        lines += ["", "Read:", *(f"- `{path}` `{md5}`" for path, md5 in sorted(link.inputs.items()))]
    for file, values in link.params.items():
        if values:
            lines += ["", f"Parameters of `{file}`:", *(f"- `{k}` = `{v}`" for k, v in flatten(values).items())]
    if link.code:
        code = {**link.code, **link.made_of.modules, **link.made_of.libraries}
        lines += ["", "<details><summary>Code by digest, libraries by version</summary>", ""]
        lines += [*(f"- `{name}` `{digest}`" for name, digest in code.items()), "", "</details>"]
    return lines


def write_provenance(
    folder: Path,
    out: Path,
    root: Path,
    label: str,
    command: str,
    recipe: Inputs | None,
    code: StageCode,
    endpoint: str | None,
) -> str | None:
    """Write ``provenance.json``, and ``PROVENANCE.md`` next to the model card.

    Args:
        folder: folder of the policy while the stage runs. Its model card gets a section that links ``PROVENANCE.md``.
        out: the policy's out, relative to the project root.
        label: the running stage, ``policies@flux_t2is``; ``dvc.lock`` does not record this run yet.
        command: command of the stage.
        recipe: inputs of the stage; None if they are not known.
        code: code of the stage when it started.
        endpoint: names of the servers that scored, with their fingerprints.

    Returns:
        Why the provenance is not known; None if it was written.
    """
    if recipe is None:
        return f"{label} is not a stage of dvc.yaml, or lacks an input: its provenance is not known"
    lock, run = Lock.read(root), Run(endpoint=endpoint)
    provenance = of_stage_now(label, command, recipe, out.as_posix(), lock, run=run, code=code)
    # Metrics files may hold seconds, so their md5s say nothing of where the policy comes from.
    links = [replace(k, outs={p: md5 for p, md5 in k.outs.items() if not is_metrics(p)}) for k in provenance.links]
    provenance = replace(provenance, links=tuple(links))
    write_json(folder / SHIPPED, provenance.as_dict())
    card = folder / "adapter" / "README.md"
    write_text(card.with_name(PROVENANCE_FILE), provenance_markdown(provenance))
    text = read_text_file(card).partition(f"\n{HEADING}")[0].rstrip("\n")
    write_text(card, f"{text}\n\n{HEADING}\n\n{PROVENANCE_TEXT}\n")
    return None
