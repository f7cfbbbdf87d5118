"""The verbs of ``paco`` and their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from paco_core.cli import acts
from paco_core.cli.parser import EXAMPLE, GroupedHelp, Parser
from paco_core.io.numbers import PORTS, whole

SEEDS = 2**32 - 1


def _figures(*verbs: argparse.ArgumentParser) -> None:
    """Add ``--json`` to verbs."""
    for verb in verbs:
        verb.add_argument("--json", action="store_true", help="JSON instead of text")


def _add_project(verb: Callable[..., argparse.ArgumentParser], whole: argparse.ArgumentParser) -> None:
    """Verbs about a project, its parameters and its state."""
    text = "lay out a new project: graph, parameters, small models, Dagster's code location"
    init = verb("init", acts.init, text, "init comics")
    init.add_argument("folder", type=Path, help="a new or empty folder")
    text = "list stages that are out of date and why, champions and reward servers"
    status = verb("status", acts.status, text, "status --json")
    text = "print what is installed and reachable here, to paste into an issue"
    doctor = verb("doctor", acts.doctor, text, "doctor")

    text = "list the profiles, or write params.yaml from one"
    profile = verb("profile", acts.profile, text, "profile use smoke")
    actions = profile.add_subparsers(dest="action", required=True)
    profiles = actions.add_parser("list", help="print the profiles and the purpose of each")
    use = actions.add_parser("use", help="write params.yaml from a profile")
    use.add_argument("name", help="a profile that `paco profile list` prints")

    text = "print what parameters mean, their types, bounds and values in the profiles"
    params = verb("params", acts.params, text, "params policies.defaults")
    params.add_argument(
        "keys", nargs="*", metavar="KEY", help="a key, the beginning of one, or a pattern (default: all)"
    )
    params.add_argument("--write", action="store_true", help="write the reference pages and the JSON schema again")
    params.add_argument(
        "--migrate",
        action="store_true",
        help="move or delete keys of an earlier version in params.yaml and the profiles, add those that dvc.yaml names",
    )
    params.set_defaults(whole=whole)

    text = "check parameters, data, disk and memory; print what each stage needs and costs"
    check = verb("check", acts.check, text, "check --profile smoke")
    check.add_argument("--profile", metavar="NAME", help="check this profile instead of params.yaml")

    text = "print a policy's work, memory and cost; refuse settings that cannot work"
    _plan_arguments(verb("plan", acts.plan, text, "plan flux_t2is --processes 2"))
    verb("graph", acts.graph, "print the graph of dvc.yaml as Mermaid", "graph")
    tour = verb("tour", acts.tour, "print where to look after a run", "tour")
    _figures(status, doctor, params, check, profiles, tour)


def _add_tracking(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs about runs, versions and where they come from."""
    text = "compare tracked runs: print a table, and write an HTML page with curves and images"
    compare = verb("compare", acts.compare, text, "compare 3f2a81 91bc04 --out comparison.html")
    text = "run id, the beginning of one, a run's name, or a DVC experiment (EXP, or EXP:STAGE)"
    compare.add_argument("runs", nargs="+", metavar="RUN", help=text)
    text = "the run that the other runs are compared with (default: the oldest run)"
    compare.add_argument("--baseline", metavar="RUN", help=text)
    compare.add_argument("--out", type=Path, default=Path("comparison.html"), help="the page (default: %(default)s)")

    text = "print what a path or alias was made from, back to the prompts"
    provenance = verb("provenance", acts.provenance, text, "provenance flux_t2is@champion --verify")
    provenance.add_argument(
        "subject", help="a path, a stage (grids@0), a policy (flux_t2is), or an alias (flux_t2is@champion)"
    )
    provenance.add_argument("--verify", action="store_true", help="hash all files again and print broken links")

    text = "make the current version champion if its checks pass and it beats the incumbent in a paired test"
    promote = verb("promote", acts.promote, text, "promote flux_t2is")
    promote.add_argument("name", help="reward, or a policy")
    text = "move the alias champion back to the previous version"
    rollback = verb("rollback", acts.rollback, text, "rollback flux_t2is")
    rollback.add_argument("name", help="reward, or a policy")
    champions = verb("champions", acts.champions, "list champions and challengers", "champions")
    text = "copy the reward model, a policy's adapter or a champion to a new folder"
    fetch = verb("fetch", acts.fetch, text, "fetch flux_t2is@champion adapter")
    fetch.add_argument("name", help="reward_merged, reward_lora, a recipe, or NAME@champion")
    fetch.add_argument("folder", type=Path, help="a new folder")

    text = "upload the reward model, a policy's adapter or an exported data set to the Hugging Face Hub"
    push = verb("push", acts.push, text, "push flux_t2is my-name/comics-lora --dry-run")
    push.add_argument("name", help="reward_merged, reward_lora, a recipe, NAME@champion, or a folder with a card")
    push.add_argument("hub_id", metavar="OWNER/NAME", help="a repository on the Hub")
    text = "print the files, the head of the card and each error; upload nothing"
    push.add_argument("--dry-run", action="store_true", help=text)
    push.add_argument("--public", action="store_true", help="create a public repository (default: private)")

    text = "send to MLflow the records that were stored locally while its server did not answer"
    sync = verb("sync", acts.sync, text, "sync")
    _figures(compare, provenance, promote, rollback, champions, fetch, push, sync)


def _add_dataset(verb: Callable[..., argparse.ArgumentParser]) -> None:
    text = "export or import the data set in public formats, or trace an id"
    dataset = verb("dataset", acts.dataset, text, "dataset export parquet comics-dataset")
    actions = dataset.add_subparsers(dest="action", required=True)
    sub = export = actions.add_parser(
        "export", help="write PaCo-Dataset, ConsistencyRank-Bench or plain Parquet, with a card, or generated stories"
    )
    formats = ("paco_dataset", "rank_bench", "parquet", "vistory")
    sub.add_argument("format", choices=formats, help="output format; vistory: the stories that t2is generated")
    sub.add_argument("folder", type=Path, help="a new folder")
    sub.add_argument("--licence", default="other", help="license of the data set, for its card (default: other)")
    sub = bring = actions.add_parser("import", help="convert public data into a folder that paco can read")
    sub.add_argument("format", choices=("paco_dataset", "rank_bench", "gedit", "vistory"), help="input format")
    sub.add_argument("folder", type=Path, help="a folder of public data; for GEdit-Bench also one Parquet file")
    sub.add_argument("out", type=Path, help="a new folder, such as data/external/paco_dataset")
    sub = actions.add_parser("trace", help="print the grids, seeds and prompt of a pair or ranking instance")
    sub.add_argument("id", help="an id in the tables of pairs or rankings")
    _figures(export, bring, sub)


def _add_reward(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs that serve and query the reward model."""
    text = "start, show or stop a server of the reward model"
    serve = verb("serve", acts.serve, text, "serve up --model data/reward_merged")
    actions = serve.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up", help="start a server that runs until you stop it")
    up.add_argument("--model", help="model folder (default: data/reward_merged)")
    actions.add_parser("gateway", help="serve all models behind one port; requests choose one by the field `model`")
    servers = actions.add_parser("status", help="name, address, engine, age and leases of each server")
    logs = actions.add_parser("logs", help="print the end of a server's log")
    logs.add_argument("name", nargs="?", help="name of a server, or a part of it (default: the latest one)")
    down = actions.add_parser("down", help="stop one server, or all")
    down.add_argument("name", nargs="?", help="name of a server, or a part of it (default: all)")

    text = "score how consistent images are, pair by pair, from 0 to 1"
    score = verb("score", acts.score, text, "score first.png second.png --reasons")
    text = "two images; of more images, or a folder, each pair is scored"
    score.add_argument("pictures", type=Path, nargs="*", metavar="IMAGE", help=text)
    text = "Parquet, CSV, TSV or JSON Lines with columns first, second (pairs) or pictures (sets), and theme"
    score.add_argument("--table", type=Path, help=text)
    text = "the scored table in the format of its input (default: NAME.scored.EXT), or the CSV of a matrix"
    score.add_argument("--out", type=Path, help=text)
    score.add_argument("--theme", help="theme of the images; without one, the prompt of the reward model names none")
    text = "a folder, a model on the Hub, or the address of a server (default: data/reward_merged)"
    score.add_argument("--model", help=text)
    score.add_argument("--reasons", action="store_true", help="also print the model's reasons")
    _figures(servers, score)


def _add_painting(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs that generate images."""
    text = "generate image sets from a prompt, and print the consistency that the reward model predicts"
    paint = verb("paint", acts.paint, text, "paint 'the seasons' --panels spring summer autumn winter")
    paint.add_argument("prompt", help="a T2IS prompt that marks its panels, or a theme with --panels")
    paint.add_argument("--panels", nargs="+", default=[], metavar="TEXT", help="what each panel shows")
    paint.add_argument(
        "--layout",
        metavar="ROWSxCOLUMNS",
        help="layout of the panels if the prompt does not state it (default of a theme: 2x2, 2x3, 2x4 or one row)",
    )
    text = "edit an image by an instruction, and print the editing reward"
    edit = verb("edit", acts.edit, text, "edit cat.png 'make the cat black' --compare")
    edit.add_argument(
        "pictures", nargs="+", type=Path, metavar="image",
        help="an image file; further files are references, in the order in which the instruction counts them",
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
            help="side of a square image in pixels (default: that of an evaluation); panels are as in 2x2",
        )
        sub.add_argument("--steps", type=whole(1), help="sampling steps (default: those of the benchmark)")
        sub.add_argument("--compare", action="store_true", help="also generate images with the model before training")
        sub.add_argument("--out", type=Path, metavar="FOLDER", help="output folder (default: painted/...)")
    text = "serve a local page that generates, scores and edits images with the base and the trained model"
    play = verb("play", acts.play, text, "play --port 7870")
    play.add_argument(
        "--port", type=whole(*PORTS), default=7861, help="port on 127.0.0.1 (default: 7861; 0: any free one)"
    )
    play.add_argument("--no-open", action="store_true", help="print the address without opening a browser")
    _figures(paint, edit)


def _add_tables(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """The benchmarks' tables, and verbs that train many times and compare."""
    text = "print the tables of all benchmarks with published rows, evaluators and prompts"
    tables = verb("tables", acts.tables, text, "tables --detail")
    tables.add_argument("--detail", action="store_true", help="also paired differences and metrics by task type")
    tables.add_argument("--out", type=Path, metavar="FOLDER", help="write tables.md and tables.html there instead")

    text = "train the reward model with several values of alpha and several seeds, and compare the results"
    sweep = verb("sweep", acts.sweep, text, "sweep --alpha 0.1 0.5 --seeds 0 1")
    sweep.add_argument(
        "--alpha", nargs="+", help="of 1/n, numbers, fast, default (default: 1/n 0.01 0.1 0.3 0.5 0.9 fast)"
    )
    sweep.add_argument("--seeds", nargs="+", type=whole(0, SEEDS), default=[0, 1, 2], help="(default: 0 1 2)")
    sweep.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="override keys of params.yaml")
    sweep.add_argument("--name", default="alpha", help="folder below data/sweeps/ (default: alpha)")

    text = "train policies and their ablations with several seeds, and write a report"
    reproduce = verb("reproduce", acts.reproduce, text, "reproduce --variants full no_log_tame --seeds 0 1 2")
    reproduce.add_argument("--variants", nargs="+", help="some of those that --list prints (default: all)")
    reproduce.add_argument("--seeds", nargs="+", type=whole(0, SEEDS), default=[0, 1, 2], help="(default: 0 1 2)")
    reproduce.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="override keys of params.yaml")
    reproduce.add_argument("--name", default="ablation", help="folder below data/reproduce/ (default: ablation)")
    reproduce.add_argument("--list", action="store_true", help="list the variants and their kept results")
    reproduce.add_argument("--report-only", action="store_true", help="write the report again from kept results")
    _figures(tables, sweep, reproduce)


def _add_runtime(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs about the code and the checkpoints of stages."""
    run = verb("run", acts.run, "run one stage of dvc.yaml (`dvc repro` calls this verb)", "run grids --item 0")
    run.add_argument("stage", help="name of a stage, without its item")
    run.add_argument("--item", help="item of a matrix stage: a shard, a policy")
    verb("code", acts.code, "record what each stage depends on besides data (the stage `code`)", "code")
    text = "list or remove the checkpoints from which trainings resume after a kill, or with more epochs"
    checkpoints = verb("checkpoints", acts.checkpoints, text, "checkpoints drop policies@flux_t2is")
    actions = checkpoints.add_subparsers(dest="action", required=True)
    kept = actions.add_parser("list", help="print stage, identity, size and age of each checkpoint")
    drop = actions.add_parser("drop", help="remove the checkpoints of some stages, or all")
    drop.add_argument("stages", nargs="*", metavar="STAGE", help="a stage that `paco checkpoints list` prints")
    drop.add_argument("--all", action="store_true", help="remove the checkpoints of all stages")
    _figures(kept, drop)


def _add_annotation(verb: Callable[..., argparse.ArgumentParser]) -> None:
    annotate = verb(
        "annotate",
        acts.annotate,
        "serve the page where people rank candidates, save their answers for the stage, print their progress, or write "
        "tasks for Label Studio",
        "annotate serve --annotators 2 --overlap 2",
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
    annotate.add_argument("--round", metavar="N", help="the round whose rankings are served or counted")
    annotate.add_argument("--retire", metavar="NAME", help="give this annotator's open work to the other annotators")
    annotate.add_argument("--json", action="store_true", help="JSON instead of text, for status")


def _plan_arguments(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("policy", help="a recipe of policies.recipes")
    plan.add_argument("--profile", metavar="NAME", help="plan with this profile instead of params.yaml")
    plan.add_argument("--processes", type=whole(1), default=1, help="number of processes that will train together")
    _figures(plan)


def _add_zoo(verb: Callable[..., argparse.ArgumentParser]) -> None:
    text = "retrain the small models of the embedded world, or measure them again"
    zoo = verb("zoo", acts.zoo, text, "zoo check flux")
    actions = zoo.add_subparsers(dest="action", required=True)
    build = actions.add_parser("build", help="train members again, resuming where an earlier call stopped")
    measured = actions.add_parser("check", help="measure members again, and compare with their cards")
    for action in (build, measured):
        action.add_argument("members", nargs="*", help="(default: all)")
    _figures(measured)


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
    _add_painting(verb)
    _add_tables(verb)
    _add_annotation(verb)
    _add_dataset(verb)
    _add_tracking(verb)
    _add_runtime(verb)
    _add_zoo(verb)
    text = "print the completion of verbs and options for a shell"
    completion = verb("completion", _print_completion, text, "completion bash")
    completion.add_argument("shell", help="the shell", choices=("bash", "zsh", "tcsh"))
    return parser
