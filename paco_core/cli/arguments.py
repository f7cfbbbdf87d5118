"""The verbs of ``paco`` and their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from paco_core.cli import acts
from paco_core.cli.arguments_painting import SEEDS, add_json, add_painting
from paco_core.cli.parser import EXAMPLE, GroupedHelp, Parser
from paco_core.io.numbers import PORTS, whole_number


def _add_project(verb: Callable[..., argparse.ArgumentParser], root_parser: argparse.ArgumentParser) -> None:
    """Verbs about a project, its parameters and its state."""
    text = "create a new project with graph, parameters, small models and Dagster code location"
    init = verb("init", acts.init, text, "init comics")
    init.add_argument("folder", type=Path, help="new or empty folder")
    text = "list outdated stages with the reason, the champions, and the reward servers"
    status = verb("status", acts.status, text, "status --json")
    text = "print installed packages, hardware and services, to paste into an issue"
    doctor = verb("doctor", acts.doctor, text, "doctor")

    text = "list the profiles, or switch params.yaml to a profile"
    profile = verb("profile", acts.profile, text, "profile use smoke")
    actions = profile.add_subparsers(dest="action", required=True)
    profiles = actions.add_parser("list", help="list the profiles with their purpose")
    use = actions.add_parser("use", help="switch params.yaml to a profile")
    use.add_argument("name", help="name of a profile")

    text = "explain parameters: meaning, type and values in the profiles"
    params = verb("params", acts.params, text, "params policies.defaults")
    params.add_argument(
        "keys", nargs="*", metavar="KEY", help="key, beginning of a key, or pattern (default: all keys)"
    )
    params.add_argument("--write", action="store_true", help="update the reference pages and the JSON schema")
    params.add_argument(
        "--migrate",
        action="store_true",
        help="update params.yaml and the profiles from an earlier version",
    )
    params.set_defaults(root_parser=root_parser)

    text = "check parameters, data, disk and memory, and estimate the cost of each stage"
    check = verb("check", acts.check, text, "check --profile smoke")
    check.add_argument("--profile", metavar="NAME", help="name of a profile to check instead of params.yaml")

    text = "estimate the work, memory and cost of a policy, and check its settings"
    _plan_arguments(verb("plan", acts.plan, text, "plan flux_t2is --processes 2"))
    verb("graph", acts.graph, "print the graph of dvc.yaml as Mermaid", "graph")
    tour = verb("tour", acts.tour, "print where to find the results of a run", "tour")
    add_json(status, doctor, params, check, profiles, tour)


def _add_tracking(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs about runs, versions and provenance."""
    text = "compare tracked runs in a table and an HTML page with curves and images"
    compare = verb("compare", acts.compare, text, "compare 3f2a81 91bc04 --out comparison.html")
    text = "run ID or its beginning, run name, or DVC experiment (EXP or EXP:STAGE)"
    compare.add_argument("runs", nargs="+", metavar="RUN", help=text)
    text = "reference run of the comparison (default: the oldest run)"
    compare.add_argument("--baseline", metavar="RUN", help=text)
    compare.add_argument("--out", type=Path, default=Path("comparison.html"), help="output page (default: %(default)s)")

    text = "trace an output, an alias or a generated image back to the prompts of its training"
    provenance = verb("provenance", acts.provenance, text, "provenance flux_t2is@champion --verify")
    provenance.add_argument(
        "subject", help="path, stage (grids@0), policy (flux_t2is), alias (flux_t2is@champion) or image"
    )
    provenance.add_argument("--verify", action="store_true", help="hash all files of the chain and report broken links")

    text = (
        "make the current version the champion if it passes its checks and beats the previous champion in a paired test"
    )
    promote = verb("promote", acts.promote, text, "promote flux_t2is")
    promote.add_argument("name", help="reward or a policy")
    text = "restore the previous champion"
    rollback = verb("rollback", acts.rollback, text, "rollback flux_t2is")
    rollback.add_argument("name", help="reward or a policy")
    champions = verb("champions", acts.champions, "list champions and challengers", "champions")
    text = "copy the reward model, an adapter or a champion to a new folder"
    fetch = verb("fetch", acts.fetch, text, "fetch flux_t2is@champion adapter")
    fetch.add_argument("name", help="model to copy: reward_merged, reward_lora, a recipe or NAME@champion")
    fetch.add_argument("folder", type=Path, help="new folder")

    text = "upload a reward model, an adapter or an exported data set to the Hugging Face Hub"
    push = verb("push", acts.push, text, "push flux_t2is my-name/comics-lora --dry-run")
    push.add_argument(
        "name", help="upload: reward_merged, reward_lora, a recipe, NAME@champion or a folder with a card"
    )
    push.add_argument("hub_id", metavar="OWNER/NAME", help="repository on the Hub")
    text = "print the files, the card and the errors, and upload nothing"
    push.add_argument("--dry-run", action="store_true", help=text)
    push.add_argument("--public", action="store_true", help="create a public repository")

    text = "send the records that are still stored locally to MLflow"
    sync = verb("sync", acts.sync, text, "sync")
    add_json(compare, provenance, promote, rollback, champions, fetch, push, sync)


def _add_dataset(verb: Callable[..., argparse.ArgumentParser]) -> None:
    text = "export or import a data set, or trace an ID"
    dataset = verb("dataset", acts.dataset, text, "dataset export parquet comics-dataset")
    actions = dataset.add_subparsers(dest="action", required=True)
    sub = export = actions.add_parser(
        "export", help="write the data set of the project with a card, or its generated stories"
    )
    formats: tuple[str, ...] = ("paco_dataset", "rank_bench", "parquet", "vistory")
    sub.add_argument("format", choices=formats, help="output format (vistory: the stories of the stage t2is)")
    sub.add_argument("folder", type=Path, help="new folder")
    sub.add_argument("--licence", default="other", help="license on the card (default: other)")
    sub = imports = actions.add_parser("import", help="convert a public data set into a folder that paco can read")
    formats = ("paco_dataset", "rank_bench", "gedit", "vistory", "mmrb2", "omniref")
    sub.add_argument("format", choices=formats, help="input format")
    sub.add_argument("folder", type=Path, help="folder or file of the public data set, in its layout")
    sub.add_argument("out", type=Path, help="new folder, for example data/external/paco_dataset")
    sub = actions.add_parser("trace", help="print the grids, seeds and prompt of a pair or ranking")
    sub.add_argument("id", help="ID of a pair or an instance, in the tables of pairs or rankings")
    add_json(export, imports, sub)


def _add_reward(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs that serve and query the reward model."""
    text = "start, inspect or stop reward servers"
    serve = verb("serve", acts.serve, text, "serve up --model data/reward_merged")
    actions = serve.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up", help="start a reward server that runs until you stop it")
    up.add_argument("--model", help="model folder (default: data/reward_merged)")
    actions.add_parser(
        "gateway", help="serve all reward models at one port; the field `model` of a request selects the model"
    )
    servers = actions.add_parser("status", help="list the reward servers with their address, engine, age and leases")
    logs = actions.add_parser("logs", help="print the end of the log of a reward server")
    logs.add_argument("name", nargs="?", help="name of the server, or a part of the name (default: the latest server)")
    down = actions.add_parser("down", help="stop one or all servers")
    down.add_argument("name", nargs="?", help="name of the server, or a part of the name (default: all servers)")

    text = "score the consistency of image pairs, from 0 to 1"
    score = verb("score", acts.score, text, "score first.png second.png --reasons")
    text = "two or more images, or a folder of images; paco scores each pair of images"
    score.add_argument("pictures", type=Path, nargs="*", metavar="IMAGE", help=text)
    text = "Parquet, CSV, TSV or JSON Lines table of pairs: columns first and second, or pictures; and theme"
    score.add_argument("--table", type=Path, help=text)
    text = "output file: table with scores (default: NAME.scored.EXT), or CSV file of the score matrix"
    score.add_argument("--out", type=Path, help=text)
    score.add_argument("--theme", help="theme of the images")
    text = "reward model: folder, hub ID or server address (default: data/reward_merged)"
    score.add_argument("--model", help=text)
    score.add_argument("--reasons", action="store_true", help="also print the reasons of the reward model")
    add_json(servers, score)


def _add_tables(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """The benchmarks' tables, and verbs that train many times and compare."""
    text = "print the results of all benchmarks next to published results"
    tables = verb("tables", acts.tables, text, "tables --detail")
    tables.add_argument("--detail", action="store_true", help="also print paired differences, and metrics by task type")
    tables.add_argument("--out", type=Path, metavar="FOLDER", help="write tables.md and tables.html to this folder")

    text = "train reward models with several values of reward.alpha and several seeds, and compare them"
    sweep = verb("sweep", acts.sweep, text, "sweep --alpha 0.1 0.5 --seeds 0 1")
    sweep.add_argument(
        "--alpha",
        nargs="+",
        help="values of alpha: numbers, 1/n, fast or default (default: 1/n 0.01 0.1 0.3 0.5 0.9 fast)",
    )
    sweep.add_argument(
        "--seeds", nargs="+", type=whole_number(0, SEEDS), default=[0, 1, 2], help="training seeds (default: 0 1 2)"
    )
    sweep.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="parameters to override")
    sweep.add_argument("--name", default="alpha", help="folder in data/sweeps/ (default: alpha)")

    text = "train policies and ablations with several seeds, and write a report"
    reproduce = verb("reproduce", acts.reproduce, text, "reproduce --variants full no_log_tame --seeds 0 1 2")
    reproduce.add_argument("--variants", nargs="+", help="variants to train (default: all)")
    reproduce.add_argument(
        "--seeds", nargs="+", type=whole_number(0, SEEDS), default=[0, 1, 2], help="training seeds (default: 0 1 2)"
    )
    reproduce.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="parameters to override")
    reproduce.add_argument("--name", default="ablation", help="folder in data/reproduce/ (default: ablation)")
    reproduce.add_argument("--list", action="store_true", help="list the variants and their results")
    reproduce.add_argument("--report-only", action="store_true", help="only write the report, from existing results")
    add_json(tables, sweep, reproduce)


def _add_runtime(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs about the code and the checkpoints of stages."""
    run = verb("run", acts.run, "run one stage of dvc.yaml, as `dvc repro` does", "run grids --item 0")
    run.add_argument("stage", help="stage name without its item")
    run.add_argument("--item", help="item of a matrix stage, for example the number of a shard")
    verb("code", acts.code, "record which code each stage runs (the stage `code` of dvc.yaml does this)", "code")
    text = "list or remove training checkpoints"
    checkpoints = verb("checkpoints", acts.checkpoints, text, "checkpoints drop policies@flux_t2is")
    actions = checkpoints.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="list checkpoints with their stage, identity, size and age")
    drop = actions.add_parser("drop", help="remove the checkpoints of some or all stages")
    drop.add_argument("stages", nargs="*", metavar="STAGE", help="stage name")
    drop.add_argument("--all", action="store_true", help="remove the checkpoints of all stages")
    add_json(listing, drop)


def _add_annotation(verb: Callable[..., argparse.ArgumentParser]) -> None:
    annotate = verb(
        "annotate",
        acts.annotate,
        "serve the annotation page, save its answers, print the progress, or export rankings",
        "annotate serve --annotators 2 --overlap 2",
    )
    annotate.add_argument(
        "action",
        nargs="?",
        choices=("serve", "status", "save", "export"),
        default="serve",
        help="action (default: serve)",
    )
    text = "rank these images instead of grids: a folder with a subfolder per prompt, or a table (image, prompt)"
    annotate.add_argument("--pictures", type=Path, metavar="PATH", help=text)
    annotate.add_argument(
        "--format",
        choices=("label-studio", "pick-a-pic", "folders", "jsonl", "characters"),
        default="label-studio",
        help="format of the export (default: %(default)s)",
    )
    annotate.add_argument("--folder", type=Path, help="new folder for the export (default: the name of the format)")
    text = "URL at which Label Studio reads the export folder (default: local files of Label Studio)"
    annotate.add_argument("--address", help=text)
    annotate.add_argument(
        "--port", type=whole_number(*PORTS), default=7860, help="port on 127.0.0.1 (default: 7860; 0: any free port)"
    )
    annotate.add_argument(
        "--annotators",
        type=whole_number(1),
        help="number of annotators; each annotator gets a link (default: the previous number, or 1)",
    )
    annotate.add_argument(
        "--overlap", type=whole_number(1), help="number of annotators per instance (default: the previous one, or 1)"
    )
    annotate.add_argument(
        "--instances",
        type=whole_number(1),
        help="number of instances to rank, selected at random (default: the previous number, or all)",
    )
    annotate.add_argument("--round", metavar="N", help="number of the round to serve or count")
    annotate.add_argument(
        "--retire", metavar="NAME", help="name of an annotator whose open rankings other annotators get"
    )
    annotate.add_argument("--json", action="store_true", help="print JSON (status only)")


def _plan_arguments(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("policy", help="recipe in policies.recipes")
    plan.add_argument("--profile", metavar="NAME", help="name of a profile to use instead of params.yaml")
    plan.add_argument("--processes", type=whole_number(1), default=1, help="number of training processes")
    add_json(plan)


def _add_zoo(verb: Callable[..., argparse.ArgumentParser]) -> None:
    text = "train or evaluate the small models of the embedded world"
    zoo = verb("zoo", acts.zoo, text, "zoo check flux")
    actions = zoo.add_subparsers(dest="action", required=True)
    build = actions.add_parser("build", help="train models, or resume their training")
    measured = actions.add_parser("check", help="evaluate models, and compare the metrics with the models' cards")
    for action in (build, measured):
        action.add_argument("members", nargs="*", help="model names (default: all; check: all that exist)")
    add_json(measured)


def _print_completion(args: argparse.Namespace) -> None:
    import shtab

    print(shtab.complete(parser(), args.shell))


def parser() -> argparse.ArgumentParser:
    text = "Consistent image generation by reinforcement learning, as a pipeline."
    parser = Parser(prog="paco", description=text, formatter_class=GroupedHelp)
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('paco-rl')}")
    text = "`paco VERB --help` explains a verb and ends with an example."
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="VERB", title=argparse.SUPPRESS, description=text, prog="paco"
    )

    def verb(name: str, act: Callable[[argparse.Namespace], None], text: str, example: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text, epilog=f"{EXAMPLE}paco {example}")
        sub.set_defaults(act=act)
        return sub

    _add_project(verb, parser)
    _add_reward(verb)
    add_painting(verb)
    _add_tables(verb)
    _add_annotation(verb)
    _add_dataset(verb)
    _add_tracking(verb)
    _add_runtime(verb)
    _add_zoo(verb)
    text = "print the completion script of a shell"
    completion = verb("completion", _print_completion, text, "completion bash")
    completion.add_argument("shell", help="shell", choices=("bash", "zsh", "tcsh"))
    return parser
