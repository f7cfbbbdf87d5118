"""Actions of the verbs that generate and edit images. Each action imports the libraries that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.cli.acts import log_line, prepare, show
from paco_core.io.imports import gc_paused
from paco_core.io.project import find_root, project_root

if TYPE_CHECKING:
    import argparse

    from paco_core.cli.paint import PaintOptions


def paint(args: argparse.Namespace) -> None:
    from paco_core.operations.painters import chosen_policy
    from paco_core.operations.prompt_records import set_record
    from paco_core.tasks.sets import SETS

    root = project_root()
    by = chosen_policy(root, args.policy, SETS)  # validates names and texts before torch is imported
    set_record(args.prompt, args.panels, args.size or max(by.recipe.eval_sizes), args.layout)
    prepare(root, [])
    with gc_paused():
        from paco_core.cli import paint as command

    show(args, command.paint_set(root, args.prompt, args.panels, _painting(args), args.layout))


def edit(args: argparse.Namespace) -> None:
    from paco_core.io.pictures import read_image
    from paco_core.operations.painters import chosen_policy
    from paco_core.operations.prompt_records import edit_record
    from paco_core.tasks.edits import EDITS

    root = project_root()
    pictures = [read_image(file) for file in args.pictures]
    edit_record(args.instruction, pictures, chosen_policy(root, args.policy, EDITS).recipe.family)
    prepare(root, [])
    with gc_paused():
        from paco_core.cli import paint as command

    show(args, command.edit_pictures(root, args.pictures, args.instruction, _painting(args)))


def story(args: argparse.Namespace) -> None:
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.io.targets import checked
    from paco_core.operations.stories import parse_characters, story_policy, story_record

    root = project_root()
    if args.out is not None:
        checked(args.out, "folder")
    characters = parse_characters(args.characters)
    by = story_policy(root, load(root / PARAMS_FILE), args.policy)
    story_record(args.panels, characters, by.recipe, args.theme)  # validates texts and images before torch is imported
    prepare(root, [])
    with gc_paused():
        from paco_core.cli import story as command

    options = command.StoryOptions(args.theme, args.seed, args.size, args.steps, args.out, not args.no_metadata)
    show(args, command.tell_story(root, args.policy, by, args.panels, characters, options))


def grade(args: argparse.Namespace) -> None:
    root = find_root()
    if root is not None:
        prepare(root, [])
    with gc_paused():
        from paco_core.grading import run

    grades = run.grade(
        args.adapters, model=args.model, trigger=args.trigger, images=args.images, prompts=args.prompts,
        seeds=args.seeds, size=args.size, steps=args.steps, reward=args.reward, clip=args.clip, out=args.out,
        project=root, on_line=log_line,
    )  # fmt: skip
    show(args, grades.answer())


def play(args: argparse.Namespace) -> None:
    root = project_root()
    prepare(root, [])
    with gc_paused():
        from paco_core.cli import play as command

    command.play(root, args.port, browser=not args.no_open, metadata=not args.no_metadata)


def _painting(args: argparse.Namespace) -> PaintOptions:
    from paco_core.cli.paint import SEEDS, PaintOptions
    from paco_core.io.files import DataError

    if args.best and (args.seeds is not None or args.compare):
        raise DataError("--best chooses among its own number of seeds; leave out --seeds and --compare")
    if args.keep_all and not args.best:
        raise DataError("--keep-all goes with --best; without it, all images are kept")
    seeds = range(args.seed, args.seed + (args.best or args.seeds or SEEDS))
    return PaintOptions(
        args.policy, seeds, args.size, args.steps, args.compare, args.out, not args.no_metadata, bool(args.best),
        args.keep_all,
    )  # fmt: skip
