"""The verbs of ``paco`` and their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from paco_core.cli import acts
from paco_core.cli.parser import Parser
from paco_core.io.numbers import PORTS, whole

SEEDS = 2**32 - 1


def _figures(*verbs: argparse.ArgumentParser) -> None:
    """Let verbs print their figures for programs, too."""
    for verb in verbs:
        verb.add_argument("--json", action="store_true", help="JSON instead of text")


def _add_tracking(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs about runs, versions and where they come from."""
    compare = verb("compare", acts.compare, "compare tracked runs: a table here, an HTML page with curves and pictures")
    text = "run id, the beginning of one, a run's name, or a DVC experiment (EXP, or EXP:STAGE)"
    compare.add_argument("runs", nargs="+", metavar="RUN", help=text)
    text = "the one of them that the others are compared with (default: the oldest run)"
    compare.add_argument("--baseline", metavar="RUN", help=text)
    compare.add_argument("--out", type=Path, default=Path("comparison.html"), help="the page (default: %(default)s)")

    provenance = verb("provenance", acts.provenance, "print what a path or alias was made from, back to the prompts")
    provenance.add_argument(
        "subject", help="a path, a stage (grids@0), a policy (flux_t2is), or an alias (flux_t2is@champion)"
    )
    provenance.add_argument("--verify", action="store_true", help="hash everything again and name broken links")

    text = "make the present version champion if its checks pass and it beats the incumbent in a paired test"
    promote = verb("promote", acts.promote, text)
    promote.add_argument("name", help="reward, or a policy")
    rollback = verb("rollback", acts.rollback, "move the alias champion back to the previous version")
    rollback.add_argument("name", help="reward, or a policy")
    champions = verb("champions", acts.champions, "list champions and challengers")
    fetch = verb("fetch", acts.fetch, "copy the reward, a policy's adapter or a champion to a new folder")
    fetch.add_argument("name", help="reward_merged, reward_lora, a recipe, or NAME@champion")
    fetch.add_argument("folder", type=Path, help="a new folder")

    text = "upload the reward, a policy's adapter or an exported data set to the Hugging Face Hub"
    push = verb("push", acts.push, text)
    push.add_argument("name", help="reward_merged, reward_lora, a recipe, NAME@champion, or a folder with a card")
    push.add_argument("hub_id", metavar="OWNER/NAME", help="a repository on the Hub")
    push.add_argument("--dry-run", action="store_true", help="print files, the card's head and what would be refused")
    push.add_argument("--public", action="store_true", help="a repository that is made is public (default: private)")

    sync = verb("sync", acts.sync, "send MLflow what was kept locally while its server did not answer")
    _figures(compare, provenance, promote, rollback, champions, fetch, push, sync)


def _add_dataset(verb: Callable[..., argparse.ArgumentParser]) -> None:
    dataset = verb("dataset", acts.dataset, "export or import the data set in public formats, or trace an id")
    actions = dataset.add_subparsers(dest="action", required=True)
    sub = export = actions.add_parser(
        "export", help="write PaCo-Dataset, ConsistencyRank-Bench or plain Parquet, with a card; or painted stories"
    )
    formats = ("paco_dataset", "rank_bench", "parquet", "vistory")
    sub.add_argument("format", choices=formats, help="of what is written; vistory: the stories that t2is painted")
    sub.add_argument("folder", type=Path, help="a new folder")
    sub.add_argument("--licence", default="other", help="licence of the data set, for its card (default: other)")
    sub = bring = actions.add_parser("import", help="turn public data into a folder of the project's own layout")
    sub.add_argument("format", choices=("paco_dataset", "rank_bench", "gedit", "vistory"), help="of what is read")
    sub.add_argument("folder", type=Path, help="of public data; of GEdit-Bench also one Parquet file")
    sub.add_argument("out", type=Path, help="a new folder, such as data/external/paco_dataset")
    sub = actions.add_parser("trace", help="print the grids, seeds and prompt of a pair or ranking instance")
    sub.add_argument("id", help="as the tables of pairs and rankings have it")
    _figures(export, bring, sub)


def _add_reward(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """The reward model: served, and asked."""
    serve = verb("serve", acts.serve, "start, show or stop a server of the reward model")
    actions = serve.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up", help="start a server and keep it until it is stopped")
    up.add_argument("--model", help="model folder (default: data/reward_merged)")
    actions.add_parser("gateway", help="put every served model behind one port, chosen by the field `model`")
    servers = actions.add_parser("status", help="name, address, engine, age and leases of each server")
    logs = actions.add_parser("logs", help="print the end of a server's log")
    logs.add_argument("name", nargs="?", help="name of a server, or a part of it (default: the latest one)")
    down = actions.add_parser("down", help="stop one server, or all")
    down.add_argument("name", nargs="?", help="name of a server, or a part of it (default: all)")

    score = verb("score", acts.score, "score how consistent pictures are, pair by pair, from 0 to 1")
    text = "two pictures; several, or a folder of them, are compared each with each"
    score.add_argument("pictures", type=Path, nargs="*", metavar="PICTURE", help=text)
    text = "Parquet, CSV, TSV or JSON Lines with columns first, second (pairs) or pictures (sets), and theme"
    score.add_argument("--table", type=Path, help=text)
    text = "a scored table, in its own format (default: NAME.scored.EXT), or the CSV of a matrix"
    score.add_argument("--out", type=Path, help=text)
    score.add_argument("--theme", help="what they were made for; without it the plain question is asked")
    text = "folder, name on the hub, or address of a server (default: data/reward_merged)"
    score.add_argument("--model", help=text)
    score.add_argument("--reasons", action="store_true", help="also print the model's reasons")
    _figures(servers, score)


def _add_painting(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Pictures for a person."""
    paint = verb("paint", acts.paint, "paint sets from a prompt and print how consistent the reward model finds them")
    paint.add_argument("prompt", help="a T2IS prompt that marks its panels, or a theme with --panels")
    paint.add_argument("--panels", nargs="+", default=[], metavar="TEXT", help="what each panel shows")
    paint.add_argument(
        "--layout",
        metavar="ROWSxCOLUMNS",
        help="how the panels stand, where the prompt does not state it (default of a theme: 2x2, 2x3, 2x4 or one row)",
    )
    edit = verb("edit", acts.edit, "edit a picture as an instruction says, and print the editing reward")
    edit.add_argument(
        "pictures", nargs="+", type=Path, metavar="picture",
        help="a picture file; further ones are references, in the order in which the instruction counts them",
    )  # fmt: skip
    edit.add_argument("instruction", help="what to change")
    for sub in (paint, edit):
        sub.add_argument(
            "--policy",
            metavar="NAME",
            help="a recipe, RECIPE@champion, the folder, file or hub id of a LoRA, or base (default: the first recipe)",
        )
        sub.add_argument(
            "--seeds", type=whole(1, 10_000), default=4, metavar="N", help="seeds 0 to N-1 (default: %(default)s)"
        )
        sub.add_argument(
            "--size",
            type=whole(1, 2**14),
            help="pixels of a square picture's side (default: of an evaluation); panels are as large as those of 2x2",
        )
        sub.add_argument("--steps", type=whole(1), help="sampling steps (default: those of the benchmark)")
        sub.add_argument("--compare", action="store_true", help="also paint with the model before training")
        sub.add_argument("--out", type=Path, metavar="FOLDER", help="where pictures go (default: painted/...)")
    text = "serve a local page to paint sets, score pictures and edit them, with base and trained side by side"
    play = verb("play", acts.play, text)
    play.add_argument(
        "--port", type=whole(*PORTS), default=7861, help="port on 127.0.0.1 (default: 7861; 0: any free one)"
    )
    play.add_argument("--no-open", action="store_true", help="print the address without opening a browser")
    _figures(paint, edit)


def _add_tables(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """The benchmarks' tables, and verbs that train many times and compare."""
    tables = verb("tables", acts.tables, "print the tables of all benchmarks, with published rows, judges and wordings")
    tables.add_argument("--detail", action="store_true", help="also paired differences and figures by task type")
    tables.add_argument("--out", type=Path, metavar="FOLDER", help="write tables.md and tables.html there instead")

    sweep = verb("sweep", acts.sweep, "train the reward with several values of alpha and seeds, and compare them")
    sweep.add_argument(
        "--alpha", nargs="+", help="of 1/n, numbers, fast, default (default: 1/n 0.01 0.1 0.3 0.5 0.9 fast)"
    )
    sweep.add_argument("--seeds", nargs="+", type=whole(0, SEEDS), default=[0, 1, 2], help="(default: 0 1 2)")
    sweep.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="override keys of params.yaml")
    sweep.add_argument("--name", default="alpha", help="folder below data/sweeps/ (default: alpha)")

    reproduce = verb("reproduce", acts.reproduce, "train policies and their ablations with several seeds, and report")
    reproduce.add_argument("--variants", nargs="+", help="some of those that --list prints (default: all)")
    reproduce.add_argument("--seeds", nargs="+", type=whole(0, SEEDS), default=[0, 1, 2], help="(default: 0 1 2)")
    reproduce.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="override keys of params.yaml")
    reproduce.add_argument("--name", default="ablation", help="folder below data/reproduce/ (default: ablation)")
    reproduce.add_argument("--list", action="store_true", help="list the variants and their kept results")
    reproduce.add_argument("--report-only", action="store_true", help="write the report again from kept results")
    _figures(tables, sweep, reproduce)


def _add_runtime(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs about what stages are made of and go on with."""
    verb("code", acts.code, "record what each stage depends on besides data (the stage `code`)")
    text = "list or remove the checkpoints from which trainings resume after a kill, or with more epochs"
    actions = verb("checkpoints", acts.checkpoints, text).add_subparsers(dest="action", required=True)
    kept = actions.add_parser("list", help="stage, identity, size and age of each")
    drop = actions.add_parser("drop", help="remove the checkpoints of some stages, or all")
    drop.add_argument("stages", nargs="*", metavar="STAGE", help="as the list names it")
    drop.add_argument("--all", action="store_true", help="those of every stage")
    _figures(kept, drop)


def _add_annotation(verb: Callable[..., argparse.ArgumentParser]) -> None:
    annotate = verb(
        "annotate",
        acts.annotate,
        "serve the page where people rank candidates, save their answers for the stage, print their progress, or write "
        "tasks for Label Studio",
    )
    annotate.add_argument(
        "action", nargs="?", choices=("serve", "status", "save", "export"), default="serve", help="(default: serve)"
    )
    annotate.add_argument("--folder", type=Path, default=Path("label-studio"), help="a new folder, for export")
    annotate.add_argument("--address", help="where Label Studio will find that folder (default: its local files)")
    annotate.add_argument(
        "--port", type=whole(*PORTS), default=7860, help="port on 127.0.0.1 (default: 7860; 0: any free one)"
    )
    annotate.add_argument(
        "--annotators", type=whole(1), help="how many people; each gets a link (default: as before, or 1)"
    )
    annotate.add_argument(
        "--overlap", type=whole(1), help="how many people rank each instance (default: as before, or 1)"
    )
    annotate.add_argument(
        "--instances", type=whole(1), help="a random subset of this size (default: as before, or all)"
    )
    annotate.add_argument("--round", metavar="N", help="what this round asks for, to serve or for status")
    annotate.add_argument("--retire", metavar="NAME", help="give this annotator's open work to the others")
    annotate.add_argument("--json", action="store_true", help="JSON instead of text, for status")


def _plan_arguments(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("policy", help="a recipe of policies.recipes")
    plan.add_argument("--profile", metavar="NAME", help="plan with this profile instead of params.yaml")
    plan.add_argument("--processes", type=whole(1), default=1, help="number of processes that will train together")
    _figures(plan)


def _print_completion(args: argparse.Namespace) -> None:
    import shtab

    print(shtab.complete(parser(), args.shell))


def parser() -> argparse.ArgumentParser:
    parser = Parser(prog="paco", description="Consistent image generation by reinforcement learning, as a pipeline.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('paco-rl')}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, act: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text)
        sub.set_defaults(act=act)
        return sub

    init = verb("init", acts.init, "lay out a new project: graph, parameters, small models, Dagster's code location")
    init.add_argument("folder", type=Path, help="a new or empty folder")
    status = verb("status", acts.status, "list stages that are out of date and why, champions and reward servers")
    doctor = verb("doctor", acts.doctor, "print what is installed and reachable here, to paste into an issue")

    run = verb("run", acts.run, "run one stage of dvc.yaml (what `dvc repro` calls)")
    run.add_argument("stage", help="name of a stage, without its item")
    run.add_argument("--item", help="item of a matrix stage: a shard, a policy")

    profile = verb("profile", acts.profile, "list the profiles, or write params.yaml from one")
    actions = profile.add_subparsers(dest="action", required=True)
    listed = actions.add_parser("list", help="the profiles, and what each is for")
    use = actions.add_parser("use", help="write params.yaml from a profile")
    use.add_argument("name", help="one that the list names")

    params = verb("params", acts.params, "print what parameters mean, their types, bounds and values in the profiles")
    params.add_argument(
        "keys", nargs="*", metavar="KEY", help="a key, the beginning of one, or a pattern (default: all)"
    )
    params.add_argument("--write", action="store_true", help="write the reference pages and the JSON schema again")
    params.add_argument(
        "--migrate",
        action="store_true",
        help="move or delete keys of an earlier version in params.yaml and the profiles, add those that dvc.yaml names",
    )
    params.set_defaults(whole=parser)

    check = verb("check", acts.check, "check parameters, data, disk and memory; print what each stage needs and costs")
    check.add_argument(
        "--profile", metavar="NAME", help="check this profile instead of params.yaml, which stays as it is"
    )

    _figures(status, doctor, params, check, listed)
    _add_reward(verb)
    _add_painting(verb)
    _add_tables(verb)

    _add_annotation(verb)
    _add_dataset(verb)

    zoo = verb("zoo", acts.zoo, "retrain the small models of the embedded world, or measure them again")
    actions = zoo.add_subparsers(dest="action", required=True)
    build = actions.add_parser("build", help="train members again, resuming where an earlier call stopped")
    measured = actions.add_parser("check", help="measure members again, and compare with their cards")
    for action in (build, measured):
        action.add_argument("members", nargs="*", help="(default: all)")

    _plan_arguments(verb("plan", acts.plan, "print a policy's work, memory and cost; refuse settings that cannot work"))
    verb("graph", acts.graph, "print the graph of dvc.yaml as Mermaid")
    _add_tracking(verb)
    _add_runtime(verb)
    _figures(measured, verb("tour", acts.tour, "print where to look after a run"))
    completion = verb("completion", _print_completion, "print the completion of verbs and options for a shell")
    completion.add_argument("shell", help="whose completion", choices=("bash", "zsh", "tcsh"))
    return parser
