"""The command ``paco``: one verb a thing that people do. Libraries are imported by the verb that needs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from paco_core.io.imports import uncollected
from paco_core.io.secrets import redact_tracebacks, redacted


def project_root() -> Path:
    """The nearest folder upwards that holds ``params.yaml`` and ``dvc.yaml``; else the working folder."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "params.yaml").is_file() and (folder / "dvc.yaml").is_file():
            return folder
    return here


def _run(args: argparse.Namespace) -> None:
    from paco_core.runtime.launch import run_stage

    run_stage(args.stage, args.item, project_root())


def _code(_args: argparse.Namespace) -> None:
    from paco_core.runtime.code.stage_code import write

    write(project_root())


def _checkpoints(args: argparse.Namespace) -> None:
    from paco_core.io.files import DataError
    from paco_core.runtime import checkpoints

    root = project_root()
    if args.action == "list":
        print(checkpoints.text(checkpoints.listing(root)))
    elif bool(args.stages) == args.all:
        raise DataError("name the stages whose checkpoints go (policies@flux_t2is), or give --all")
    else:
        print(f"removed:\n{checkpoints.text(checkpoints.drop(root, args.stages))}")


def _profile(args: argparse.Namespace) -> None:
    from paco_core.config import profiles

    root = project_root()
    if args.action == "list":
        for name in profiles.available(root):
            print(name)
    else:
        print(profiles.use(root, args.name))


def _check(args: argparse.Namespace) -> None:
    from paco_core.planning.preflight import check_project

    report = check_project(project_root(), args.profile)
    print(report.text())
    if not report.passed:
        raise SystemExit(1)


def _serve(args: argparse.Namespace) -> None:
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
        print(endpoint.status(root))
    elif args.action == "logs":
        print(endpoint.logs(root, args.name))
    else:
        print(endpoint.down(root, args.name))


def _score(args: argparse.Namespace) -> None:
    with uncollected():
        from paco_core.cli.reward_model import score_pair, score_table
    from paco_core.io.files import DataError

    root, model, reasons = project_root(), args.model, args.reasons
    if (args.table is None) == (args.second is None) or (args.table and args.first):
        raise DataError("give two pictures, or --table with a table of pairs")
    if args.table is None:
        print(score_pair(root, args.first, args.second, args.theme, model, reasons))
        return

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    print(score_table(root, args.table, model, reasons, args.out, theme=args.theme, say=say))


def _sweep(args: argparse.Namespace) -> None:
    root = project_root()
    _prepare(root, args.set)
    with uncollected():
        from paco_core.cli.sweep import sweep

    print(sweep(root, args.alpha, args.seeds, args.set, args.name))


def _reproduce(args: argparse.Namespace) -> None:
    root = project_root()
    _prepare(root, args.set)
    with uncollected():
        from paco_core.cli import reproduce as command

    options = command.Options(args.variants, args.seeds, args.set, args.name)
    act = command.listing if args.list else command.report_only if args.report_only else command.reproduce
    print(act(root, options))


def _prepare(root: Path, changes: Sequence[str]) -> None:
    """Set threads by the changed parameters, before torch is imported."""
    from paco_core.config.changes import changed, changes_of
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.runtime.process import prepare

    prepare(changed(load(root / PARAMS_FILE), changes_of(changes)).threads)


def _annotate(args: argparse.Namespace) -> None:
    from paco_core.cli import annotate as command

    root = project_root()
    if args.action == "serve":
        command.serve(root, args.port, command.Options(args.annotators, args.overlap, args.instances, args.retire))
    elif args.action == "export":
        print(command.export(root, args.folder, args.address))
    elif args.action == "save":
        print(command.save(root))
    else:
        print(command.status(root))


def _dataset(args: argparse.Namespace) -> None:
    from paco_core.cli import exchange as command

    root = project_root()
    if args.action == "export":
        print(command.export(root, args.format, args.folder, args.licence))
    elif args.action == "import":
        print(command.bring(args.format, args.folder, args.out))
    else:
        print(command.trace(root, args.id))


def _zoo(args: argparse.Namespace) -> None:
    from paco_core.cli import zoo as command

    root = project_root()
    if args.action == "build":
        command.build(args.members, root)
    elif not command.check(args.members, root):
        raise SystemExit(1)


def _plan(args: argparse.Namespace) -> None:
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.planning.plan import plan

    root = project_root()
    print(plan(load(root / PARAMS_FILE), args.policy, root, args.processes))


def _graph(_args: argparse.Namespace) -> None:
    from paco_core.runtime.graph import mermaid

    print(mermaid(project_root()))


def _compare(args: argparse.Namespace) -> None:
    from paco_core.cli.compare import compare

    print(compare(project_root(), args.runs, args.out))


def _provenance(args: argparse.Namespace) -> None:
    from paco_core.cli import provenance as command

    root = project_root()
    story = command.tell(root, args.subject)
    if story.problem:
        print(f"runs are not named: {story.problem}", file=sys.stderr)
    if not args.verify:
        print(story.text("json" if args.json else "markdown"))
        return
    verdict = command.check(root, story)
    print(verdict.text())
    if verdict.breaks:
        raise SystemExit(1)


def _promote(args: argparse.Namespace) -> None:
    from paco_core.cli.promotion import promote

    made = promote(project_root(), args.name, say=lambda line: print(line, file=sys.stderr))
    print(made.text())


def _rollback(args: argparse.Namespace) -> None:
    from paco_core.cli.promotion import roll_back

    print(roll_back(project_root(), args.name))


def _champions(_args: argparse.Namespace) -> None:
    from paco_core.operations.promotion.champions import Champions

    print(Champions(project_root()).text())


def _sync(_args: argparse.Namespace) -> None:
    from paco_core.runtime.tracking import send_left_over

    sent = send_left_over(project_root())
    print(sent.text())
    if sent.waiting:
        raise SystemExit(1)


def _tour(_args: argparse.Namespace) -> None:
    from paco_core.cli.tour import tour

    print(tour(project_root()))


def _add_tracking(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs about runs, versions and where they come from."""
    compare = verb("compare", _compare, "compare tracked runs: a table here, one HTML page with curves and pictures")
    text = "run id, the beginning of one, a run's name, or an experiment of DVC (EXP, or EXP:STAGE)"
    compare.add_argument("runs", nargs="+", metavar="RUN", help=text)
    compare.add_argument("--out", type=Path, default=Path("comparison.html"), help="the page (default: %(default)s)")

    provenance = verb("provenance", _provenance, "print what a path or alias was made from, up to the prompts")
    provenance.add_argument("subject", help="a path, a stage (grids@0), or an alias (flux_t2is@champion)")
    provenance.add_argument("--json", action="store_true", help="JSON instead of Markdown")
    provenance.add_argument("--verify", action="store_true", help="hash everything again and name what broke")

    text = "make the present version champion if its checks pass and it beats the incumbent in a paired test"
    verb("promote", _promote, text).add_argument("name", help="reward, or a policy")
    verb("rollback", _rollback, "give the alias champion back to the version before").add_argument("name")
    verb("champions", _champions, "list champions and challengers")

    verb("sync", _sync, "send MLflow what was kept locally while its server did not answer")


def _add_dataset(verb: Callable[..., argparse.ArgumentParser]) -> None:
    dataset = verb("dataset", _dataset, "export or import the data set in public formats, or trace an id")
    actions = dataset.add_subparsers(dest="action", required=True)
    sub = actions.add_parser("export", help="write PaCo-Dataset, ConsistencyRank-Bench or plain Parquet, with a card")
    sub.add_argument("format", choices=("paco_dataset", "rank_bench", "parquet"))
    sub.add_argument("folder", type=Path, help="a new one")
    sub.add_argument("--licence", default="other", help="of the data set, for its card (default: other)")
    sub = actions.add_parser("import", help="turn public data into a folder of the project's own layout")
    sub.add_argument("format", choices=("paco_dataset", "rank_bench"))
    sub.add_argument("folder", type=Path)
    sub.add_argument("out", type=Path, help="a new one, such as data/external/paco_dataset")
    sub = actions.add_parser("trace", help="print the grids, seeds and prompt of a pair or ranking instance")
    sub.add_argument("id")


def _add_tables(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs that train many times and compare."""
    sweep = verb("sweep", _sweep, "train the reward under several shares alpha and seeds, and compare them")
    sweep.add_argument("--alpha", nargs="+", help="of 1/n, numbers, fast, default (all: 1/n 0.01 0.1 0.3 0.5 0.9 fast)")
    sweep.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    sweep.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="other keys of params.yaml")
    sweep.add_argument("--name", default="alpha", help="folder below data/sweeps/ (default: alpha)")

    reproduce = verb("reproduce", _reproduce, "train policies under several seeds and their ablations, and report")
    reproduce.add_argument("--variants", nargs="+", help="some of those that --list names (default: all)")
    reproduce.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    reproduce.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="other keys of params.yaml")
    reproduce.add_argument("--name", default="ablation", help="folder below data/reproduce/ (default: ablation)")
    reproduce.add_argument("--list", action="store_true", help="list the variants and what is kept of them")
    reproduce.add_argument("--report-only", action="store_true", help="write the report again from what is kept")


def _add_runtime(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs about what stages are made of and go on with."""
    verb("code", _code, "write down what each stage is made of besides data (the stage `code`)")
    text = "list or remove what trainings go on with after a kill, or with more epochs"
    actions = verb("checkpoints", _checkpoints, text).add_subparsers(dest="action", required=True)
    actions.add_parser("list", help="stage, identity, size and age of each")
    drop = actions.add_parser("drop", help="remove those of some stages, or all")
    drop.add_argument("stages", nargs="*", metavar="STAGE")
    drop.add_argument("--all", action="store_true")


def _plan_arguments(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("policy")
    plan.add_argument("--processes", type=int, default=1, help="processes that will train together")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="paco", description="Consistent image generation by reinforcement learning, as a pipeline."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, act: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text)
        sub.set_defaults(act=act)
        return sub

    run = verb("run", _run, "run one stage of dvc.yaml (what `dvc repro` calls)")
    run.add_argument("stage")
    run.add_argument("--item", help="item of a matrix stage: a shard, a policy")

    profile = verb("profile", _profile, "list the profiles, or write params.yaml from one")
    actions = profile.add_subparsers(dest="action", required=True)
    actions.add_parser("list")
    actions.add_parser("use").add_argument("name")

    check = verb("check", _check, "check parameters, data, disk and memory; print what each stage needs and costs")
    check.add_argument(
        "--profile", metavar="NAME", help="check this profile instead of params.yaml, which stays as it is"
    )

    serve = verb("serve", _serve, "start, show or stop a server of the reward model")
    actions = serve.add_subparsers(dest="action", required=True)
    actions.add_parser("up").add_argument("--model", help="model folder (default: data/reward_merged)")
    actions.add_parser("gateway", help="put every served model behind one port, chosen by the field `model`")
    actions.add_parser("status", help="name, address, engine, age and leases of each server")
    actions.add_parser("logs").add_argument("name", nargs="?")
    actions.add_parser("down").add_argument("name", nargs="?")

    score = verb("score", _score, "score how consistent two pictures are, from 0 to 1")
    score.add_argument("first", type=Path, nargs="?")
    score.add_argument("second", type=Path, nargs="?")
    score.add_argument("--table", type=Path, help="Parquet, CSV or JSON Lines with columns first, second, theme")
    score.add_argument("--out", type=Path, help="where the scored table goes (default: beside it, NAME.scored.EXT)")
    score.add_argument("--theme", help="the theme both were made for; without it the plain question is asked")
    score.add_argument("--model", type=Path, help="model folder (default: data/reward_merged)")
    score.add_argument("--reasons", action="store_true", help="also print the model's reasons")

    _add_tables(verb)

    annotate = verb(
        "annotate",
        _annotate,
        "serve the page where people rank candidates, save their answers for the stage, print how they do, or write "
        "tasks for Label Studio",
    )
    annotate.add_argument("action", nargs="?", choices=("serve", "status", "save", "export"), default="serve")
    annotate.add_argument("--folder", type=Path, default=Path("label-studio"), help="a new one, for export")
    annotate.add_argument("--address", help="where Label Studio will find that folder (default: its local files)")
    annotate.add_argument("--port", type=int, default=7860, help="on 127.0.0.1 (default: 7860; 0: any free one)")
    annotate.add_argument("--annotators", type=int, help="how many people; each gets a link (default: as before, or 1)")
    annotate.add_argument("--overlap", type=int, help="how many people rank each instance (default: as before, or 1)")
    annotate.add_argument("--instances", type=int, help="a random part of this many (default: as before, or all)")
    annotate.add_argument("--retire", metavar="NAME", help="give this annotator's open work to the others")

    _add_dataset(verb)

    zoo = verb("zoo", _zoo, "train the small models of the embedded world again, or measure them again")
    actions = zoo.add_subparsers(dest="action", required=True)
    for action in ("build", "check"):
        actions.add_parser(action).add_argument("members", nargs="*", help="default: all")

    _plan_arguments(verb("plan", _plan, "print a policy's arithmetic, memory and cost; refuse what cannot work"))
    verb("graph", _graph, "print the graph of dvc.yaml as Mermaid")
    _add_tracking(verb)
    _add_runtime(verb)
    verb("tour", _tour, "say where to look after a run")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: exit 0 when it worked, 1 with one clear message when input or data are at fault."""
    args = _parser().parse_args(argv)
    redact_tracebacks()
    if (root := str(project_root())) not in sys.path:
        sys.path.append(root)  # where rewards of the user's own lie; `python -m paco_core` looks there anyway
    from paco_core.config.params import ParamsError
    from paco_core.io.files import DataError

    try:
        args.act(args)
    except (DataError, ParamsError) as error:
        print(f"paco {args.verb}: {redacted(str(error))}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print(f"paco {args.verb}: interrupted; nothing half-written was kept", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # `paco graph | head`
        sys.stderr.close()
    except OSError as error:
        if error.errno != 28:  # ENOSPC
            raise
        print(
            f"paco {args.verb}: no space left on the disk ({error.filename or 'while writing'}); "
            "free some space and run the same command again: finished outs were kept",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
