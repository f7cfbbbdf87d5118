"""A provenance for a card (Markdown, with each stage's parameters and code) and for a terminal (a line a stage)."""

from __future__ import annotations

from dataclasses import replace

from paco_core.runtime.provenance.chain import Link, Provenance, Run
from paco_core.runtime.tracking import flatten


def plain(provenance: Provenance) -> str:
    """A line for each stage: what it made, from what, by which run and commit; then what no stage made."""
    head = ["stage", "made", "reads", "MLflow run", "git commit"]
    rows = [_plain_row(link) for link in provenance.links]
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    given = {path for link in provenance.links for path in {**link.given, **link.made_of.files}}
    version = f", version {provenance.md5[:12]}" if provenance.md5 else ""
    return "\n".join(
        [
            f"{provenance.path}{version}: each line was made from the lines that it reads",
            "",
            *(
                "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                for row in [head, *rows]
            ),
            *(["", f"made by no stage: {', '.join(sorted(given))}"] if given else []),
            "",
            "with --json: whole md5s, parameters, code and the page of each run",
        ]
    )


def _plain_row(link: Link) -> list[str]:
    outs = [f"{path} {md5[:8]}" for path, md5 in link.outs.items() if "/metrics/" not in path]
    run = link.run or Run()
    commit = (run.git_commit or "")[:8] + ("+" if run.git_dirty else "")
    return [link.stage, ", ".join(outs) or "this one", ", ".join(link.reads), (run.mlflow_run or "")[:8], commit]


def markdown(provenance: Provenance, level: int = 1) -> str:
    """The whole story; ``level`` is that of its heading."""
    mark = "#" * level
    version = f", version `{provenance.md5}`" if provenance.md5 else ""
    runs = any(link.run is not None and replace(link.run, endpoint=None) != Run() for link in provenance.links)
    columns = ["stage", "made", "reads", *(["MLflow run", "git commit", "Dagster run"] if runs else [])]
    asked = f"Runs and commits are recorded beside it: `paco provenance {provenance.path}` in its project names them."
    lines = [
        f"{mark} Provenance of `{provenance.path}`",
        "",
        f"Made by `{provenance.links[0].stage}`{version}. Each line was made from the lines that it reads; md5s are "
        f"those of DVC.{'' if runs else ' ' + asked}",
        "",
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *(f"| {' | '.join(_row(link)[: len(columns)])} |" for link in provenance.links),
    ]
    given = {p: md5 for link in provenance.links for p, md5 in {**link.given, **link.made_of.files}.items()}
    if given:
        lines += ["", f"{mark}# Given, made by no stage", "", *(f"- `{p}` `{md5}`" for p, md5 in sorted(given.items()))]
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
        made_of = {**link.code, **link.made_of.modules, **link.made_of.libraries}
        lines += ["", "<details><summary>Code by digest, libraries by version</summary>", ""]
        lines += [*(f"- `{name}` `{digest}`" for name, digest in made_of.items()), "", "</details>"]
    return lines
