"""Arguments of the verbs that generate, edit and grade images."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from paco_core.cli import acts_painting
from paco_core.io.numbers import PORTS, whole_number

SEEDS = 2**32 - 1


def add_json(*verbs: argparse.ArgumentParser) -> None:
    """Add ``--json`` to verbs."""
    for verb in verbs:
        verb.add_argument("--json", action="store_true", help="print JSON")


def add_painting(verb: Callable[..., argparse.ArgumentParser]) -> None:
    """Verbs that generate images."""
    text = "generate image sets from a prompt and score their consistency"
    paint = verb("paint", acts_painting.paint, text, "paint 'the seasons' --panels spring summer autumn winter")
    paint.add_argument("prompt", help="T2IS prompt that marks its panels, or with --panels only the theme")
    paint.add_argument("--panels", nargs="+", default=[], metavar="TEXT", help="description of each panel")
    paint.add_argument(
        "--layout",
        metavar="ROWSxCOLUMNS",
        help="layout of the panels, if the prompt does not state it (default: chosen by the number of panels)",
    )
    text = "edit an image by an instruction, and score the edited image"
    edit = verb("edit", acts_painting.edit, text, "edit cat.png 'make the cat black' --compare")
    edit.add_argument(
        "pictures", nargs="+", type=Path, metavar="image",
        help="image to edit; further files are additional reference images",
    )  # fmt: skip
    edit.add_argument("instruction", help="instruction for the edit")
    text = "generate a story with your characters, and score how well each panel keeps them"
    story = verb("story", acts_painting.story, text, "story --character fox=fox.png 'Fox wakes' 'Fox runs home'")
    story.add_argument("panels", nargs="+", metavar="TEXT", help="text of each panel, which names its characters")
    text = "name of a character and one to three image files; repeat the option for each character"
    story.add_argument(
        "--character", dest="characters", action="append", required=True, metavar="NAME=IMAGE[,IMAGE]", help=text
    )
    text = "subject of the story and what all panels share, for example 'a day. All images show watercolor'"
    story.add_argument("--theme", metavar="TEXT", help=f"{text} (default: the names of the characters)")
    for sub in (paint, edit, story):
        sub.add_argument(
            "--policy",
            metavar="NAME",
            help="policy: recipe, RECIPE@champion, LoRA (folder, file or hub ID) or base (default: first recipe)",
        )
        _add_sampling(sub)
    for sub in (paint, edit):
        sub.add_argument(
            "--seeds",
            type=whole_number(1, 10_000),
            metavar="N",
            help="number of seeds (default: 4)",
        )
        text = "generate N candidates, and keep the one with the highest score of the reward model"
        sub.add_argument("--best", type=whole_number(2, 10_000), metavar="N", help=text)
        sub.add_argument("--keep-all", action="store_true", help="with --best: also keep the other candidates")
        sub.add_argument("--compare", action="store_true", help="also generate images with the model before training")
    _add_grade(verb)
    text = "open a local page that generates, edits and scores images"
    play = verb("play", acts_painting.play, text, "play --port 7870")
    play.add_argument(
        "--port", type=whole_number(*PORTS), default=7861, help="port on 127.0.0.1 (default: 7861; 0: any free port)"
    )
    play.add_argument("--no-open", action="store_true", help="do not open a browser")
    _add_no_metadata(play)
    add_json(paint, edit, story)


def _add_sampling(verb: argparse.ArgumentParser) -> None:
    """Options of generation that all verbs have."""
    verb.add_argument(
        "--seed", type=whole_number(0, SEEDS), default=0, metavar="N", help="first seed (default: %(default)s)"
    )
    verb.add_argument(
        "--size",
        type=whole_number(1, 2**14),
        help="side of an image with 2x2 panels in pixels; other layouts use its panel size (default: as evaluated)",
    )
    verb.add_argument("--steps", type=whole_number(1), help="number of sampling steps (default: as in the benchmark)")
    verb.add_argument("--out", type=Path, metavar="FOLDER", help="output folder (default: painted/...)")
    _add_no_metadata(verb)


def _add_no_metadata(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--no-metadata", action="store_true", help="write no model, prompt or seed into the image files")


def _add_grade(verb: Callable[..., argparse.ArgumentParser]) -> None:
    text = "compare adapters of one base model from equal noise, and choose the best one"
    grade = verb("grade", acts_painting.grade, text, "grade loras/ --model OWNER/NAME --images photos")
    text = "LoRA files, folders or hub IDs (default: the trained recipes of the project and their checkpoints)"
    grade.add_argument("adapters", nargs="*", metavar="ADAPTER", help=text)
    text = "base model: a recipe, folder or hub ID (default: the model of the first recipe)"
    grade.add_argument("--model", help=text)
    grade.add_argument("--trigger", metavar="WORDS", help="words for the subject in the prompts")
    text = "folder of images of the subject; the adapter with the highest identity is the best one"
    grade.add_argument("--images", type=Path, metavar="FOLDER", help=text)
    text = (
        "T2IS records (.jsonl) or one prompt per line (default: 12 built-in prompts, or held-out ones of the project)"
    )
    grade.add_argument("--prompts", type=Path, metavar="FILE", help=text)
    text = "number of seeds, from seed 0 (default: %(default)s)"
    grade.add_argument("--seeds", type=whole_number(1, 10_000), default=2, metavar="N", help=text)
    text = "side of an image with one panel or 2x2 panels in pixels (default: that of the recipe, or 512)"
    grade.add_argument("--size", type=whole_number(1, 2**14), help=text)
    grade.add_argument(
        "--steps", type=whole_number(1), help="number of sampling steps (default: of the benchmark or family)"
    )
    text = "reward model: folder, hub ID or server address (default: data/reward_merged)"
    grade.add_argument("--reward", metavar="MODEL", help=text)
    grade.add_argument("--clip", metavar="MODEL", help="CLIP model of the text following (default: that of a recipe)")
    text = "output folder; a second run with this folder resumes (default: %(default)s)"
    grade.add_argument("--out", type=Path, default=Path("graded"), metavar="FOLDER", help=text)
    add_json(grade)
