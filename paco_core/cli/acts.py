"""Actions of the verbs of ``paco``. Each action imports the libraries that it needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from paco_core.io.answer import Answer, to_jsonable
from paco_core.io.imports import gc_paused
from paco_core.io.project import find_root, project_root, working_folder
from paco_core.io.secrets import redacted


def show(args: argparse.Namespace, answer: Answer) -> None:
    print(answer.json(sys.stdout.encoding) if args.json else redacted(answer))


def init(args: argparse.Namespace) -> None:
    from paco_core.cli.init import init

    print(init(args.folder))


def run(args: argparse.Namespace) -> None:
    from paco_core.stages import run_stage

    run_stage(args.stage, args.item, project_root())


def code(_args: argparse.Namespace) -> None:
    from paco_core.runtime.code.stage_code import write_stage_code

    write_stage_code(project_root())


def checkpoints(args: argparse.Namespace) -> None:
    from paco_core.io.files import DataError
    from paco_core.runtime import checkpoints

    root = project_root()
    if args.action == "list":
        rows = checkpoints.list_checkpoints(root)
        show(args, Answer(checkpoints.checkpoint_table(rows), rows))
    elif bool(args.stages) == args.all:
        raise DataError("name the stages whose checkpoints to remove (policies@flux_t2is), or give --all")
    else:
        rows = checkpoints.drop(root, args.stages)
        show(args, Answer(f"removed:\n{checkpoints.checkpoint_table(rows)}", rows))


def profile(args: argparse.Namespace) -> None:
    from paco_core.config import profiles
    from paco_core.io.text_table import text_table

    root = project_root()
    if args.action == "list":
        descriptions = {name: profiles.description(root, name) for name in profiles.available(root)}
        show(args, Answer("\n".join(text_table(list(descriptions.items()))), descriptions))
    else:
        print(profiles.use(root, args.name))


def params(args: argparse.Namespace) -> None:
    from paco_core.cli import reference as verbs
    from paco_core.config import reference
    from paco_core.io.targets import checked

    root = project_root()
    if args.write:
        for page in (reference.PAGE, reference.SCHEMA, verbs.PAGE):
            checked(root / page, "file")
        print(
            "\n".join(
                f"wrote {path}" for path in [*reference.write_parameter_docs(root), verbs.write(root, args.root_parser)]
            )
        )
    elif args.migrate:
        from paco_core.config.migration import migrate

        print(migrate(root))
    else:
        show(args, reference.text(root, args.keys))


def check(args: argparse.Namespace) -> None:
    from paco_core.planning.preflight import check_project
    from paco_core.stages import declared

    root = project_root()
    report = check_project(root, declared(root), args.profile)
    costs = [{"stage": label, **to_jsonable(cost)} for label, cost in report.costs.items()]
    show(args, Answer(report.text(), {**to_jsonable(report), "costs": costs, "passed": report.passed}))
    if not report.passed:
        raise SystemExit(1)


def serve(args: argparse.Namespace) -> None:
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.io import paths
    from paco_core.serving.servers import endpoint

    root = project_root()
    if args.action == "up":
        folder = root / (args.model or paths.REWARD_MERGED)
        print(endpoint.up(folder, load(root / PARAMS_FILE).serving, root))
    elif args.action == "gateway":
        print(endpoint.gateway(load(root / PARAMS_FILE).serving, root))
    elif args.action == "status":
        show(args, endpoint.server_status(root))
    elif args.action == "logs":
        print(endpoint.logs(root, args.name))
    else:
        print(endpoint.down(root, args.name))


def score(args: argparse.Namespace) -> None:
    root = find_root()
    if root is not None and (root / "params.yaml").is_file():
        prepare(root, [])
    with gc_paused():
        from paco_core.cli import score as command
    from paco_core.io.files import DataError

    options = command.ScoreOptions(args.model, args.theme, args.reasons)
    if args.table is None:
        show(args, command.score_pictures(root, args.pictures, options, args.out, log_line))
        return
    if args.pictures:
        raise DataError("give pictures, or --table with a table of them, not both")
    from paco_core.cli.score_table import score_table

    show(args, score_table(root, args.table, options, args.out, log_line))


def log_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def sweep(args: argparse.Namespace) -> None:
    root = project_root()
    prepare(root, args.set)
    with gc_paused():
        from paco_core.experiments.reward_sweep import run_reward_sweep

    show(args, run_reward_sweep(root, args.alpha, args.seeds, args.set, args.name))


def reproduce(args: argparse.Namespace) -> None:
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.experiments.variants import select_variants

    root = project_root()
    select_variants(args.variants, load(root / PARAMS_FILE).policies.recipes)  # before more is imported
    prepare(root, args.set)
    with gc_paused():
        from paco_core.experiments import reproduction as command

    options = command.ReproduceOptions(args.variants, args.seeds, args.set, args.name)
    act = command.listing if args.list else command.report_only if args.report_only else command.run_reproduction
    show(args, act(root, options))


def prepare(root: Path, changes: Sequence[str]) -> None:
    """Set threads by the changed parameters, before torch is imported."""
    from paco_core.config.changes import changed, changes_of
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.runtime.process import prepare_process

    prepare_process(changed(load(root / PARAMS_FILE), changes_of(changes)).threads)


def annotate(args: argparse.Namespace) -> None:
    from paco_core.cli import annotate as of_project
    from paco_core.cli import annotate_images as of_images
    from paco_core.io.files import DataError

    form, folder = args.format, args.folder or Path(args.format)
    options = of_project.AnnotateOptions(args.annotators, args.overlap, args.instances, args.retire, args.round)
    if args.pictures is not None:
        if args.round is not None:
            raise DataError("--round is a round of a project; leave it out, or leave out --pictures")
        if args.action == "serve":
            of_images.serve(args.pictures, args.port, options)
        elif args.action == "export":
            print(of_images.export(args.pictures, form, folder, args.address))
        elif args.action == "save":
            print(of_images.save(args.pictures))
        else:
            show(args, of_images.status(args.pictures))
        return
    root = project_root()
    if args.action == "serve":
        of_project.serve(root, args.port, options)
    elif args.action == "export":
        print(of_project.export(root, form, folder, args.address))
    elif args.action == "save":
        print(of_project.save(root))
    else:
        show(args, of_project.status(root, args.round))


def dataset(args: argparse.Namespace) -> None:
    from paco_core.cli import exchange as command

    if args.action == "import":
        show(args, command.import_dataset(args.format, args.folder, args.out))
    elif args.action == "export":
        show(args, command.export(project_root(), args.format, args.folder, args.licence))
    else:
        show(args, command.trace(project_root(), args.id))


def zoo(args: argparse.Namespace) -> None:
    from paco_core.cli.zoo import load_command

    if args.action == "build":
        load_command().build(args.members, project_root())
        return
    report, agrees = load_command().check(args.members, project_root())
    show(args, report)
    if not agrees:
        raise SystemExit(1)


def plan(args: argparse.Namespace) -> None:
    from paco_core.config import profiles
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.planning.plan import plan

    root = project_root()
    params = load(root / PARAMS_FILE) if args.profile is None else profiles.read(root, args.profile)
    show(args, plan(params, args.policy, root, args.processes))


def graph(_args: argparse.Namespace) -> None:
    from paco_core.runtime.graph import mermaid

    print(mermaid(project_root()))


def compare(args: argparse.Namespace) -> None:
    from paco_core.io.targets import checked

    root = project_root()
    checked(args.out, "file", suffixes=(".html", ".htm"))
    from paco_core.experiments.comparison import compare_runs

    show(args, compare_runs(root, args.runs, args.out, args.baseline))


def provenance(args: argparse.Namespace) -> None:
    from paco_core.cli import provenance as command

    traced: command.TracedImage | command.TracedOrigin
    if (file := command.find_image_file(find_root(), args.subject)) is not None:
        traced = command.trace_image(find_root(), file)
        policy = traced.policy
    else:
        traced = policy = command.find_origin(project_root(), args.subject)
    if traced.problem:
        print(f"runs are unknown: {traced.problem}", file=sys.stderr)
    if not args.verify or policy is None:
        show(args, traced.text())
        return
    verdict = command.check(project_root(), policy)
    show(args, Answer(verdict.text(), verdict))
    if verdict.breaks:
        raise SystemExit(1)


def promote(args: argparse.Namespace) -> None:
    root = _recorded_root(args.name)
    from paco_core.operations.promote import promote

    decision = promote(root, args.name, log=lambda line: print(line, file=sys.stderr))
    show(args, Answer(decision.text(), decision))


def rollback(args: argparse.Namespace) -> None:
    root = _recorded_root(args.name)
    from paco_core.operations.promote import roll_back

    show(args, roll_back(root, args.name))


def _recorded_root(name: str) -> Path:
    """The project, whose runs this user may record about ``name``; else an error, before more is imported.

    A store that does not answer is an error, too.
    """
    from paco_core.operations.named import check_name
    from paco_core.runtime.tracking import connect, require_writable, tracking_uri

    root = project_root()
    check_name(root, name)
    require_writable(root)
    connect(tracking_uri(root))
    return root


def champions(args: argparse.Namespace) -> None:
    from paco_core.operations.promotion.champions import Champions

    show(args, Champions(project_root()).text())


def fetch(args: argparse.Namespace) -> None:
    from paco_core.operations.named import copy_named_files

    count = copy_named_files(project_root(), args.name, args.folder)
    figures = {"folder": args.folder, "name": args.name, "files": count}
    show(args, Answer(f"{args.folder}: {count} files of {args.name}", figures))


def status(args: argparse.Namespace) -> None:
    from paco_core.cli.status import status

    state = status(project_root())
    show(args, Answer(state.text(), {**to_jsonable(state), "up_to_date": state.current}))


def doctor(args: argparse.Namespace) -> None:
    from paco_core.cli.doctor import report

    show(args, report(find_root() or working_folder()))


def sync(args: argparse.Namespace) -> None:
    from paco_core.io.secrets import bare
    from paco_core.runtime.tracking import count_journals, send_left_over, tracking_uri

    root = project_root()
    if count := count_journals(root):
        log_line(f"sending what {count} runs left to MLflow at {bare(tracking_uri(root))}")
    result = send_left_over(root)
    show(args, Answer(result.text(), result))
    if result.waiting:
        raise SystemExit(1)


def push(args: argparse.Namespace) -> None:
    from paco_core.operations import publish

    upload = publish.upload_of(find_root() or working_folder(), args.name)  # the folder may be outside of a project
    publish.check_id(args.hub_id)
    if args.dry_run or not args.json:
        show(args, Answer(upload.text(), upload))
    if args.dry_run and upload.faults:
        raise SystemExit(1)
    if not args.dry_run:
        pushed = publish.upload_to_hub(upload, args.hub_id, private=not args.public)
        show(args, Answer(pushed, {**to_jsonable(upload), "pushed": pushed}))


def tables(args: argparse.Namespace) -> None:
    from paco_core.io.targets import checked
    from paco_core.stages import declared

    with gc_paused():
        from paco_core.report import tables

    if args.out is not None:
        wrote = [checked(place, "file") for place in tables.files(checked(args.out, "folder"))]
    root = project_root()
    benchmarks = [name for name, stage in declared(root).items() if stage.tables]
    sections = tables.sections(root, benchmarks, detail=args.detail)
    if args.out is None:
        show(args, Answer(tables.render_text(sections), sections))
    else:
        tables.write_benchmark_tables(args.out, sections)
        show(args, Answer(f"wrote {wrote[0]} and {wrote[1]}", sections))


def tour(args: argparse.Namespace) -> None:
    from paco_core.cli.tour import tour

    show(args, tour(project_root()))
