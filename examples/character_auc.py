"""ROC-AUC of your reward model on characters: per kind of wrong panel and number of images, compared with CLIP-I.

    python examples/character_auc.py                             # characters that the stage `pairs` held out
    python examples/character_auc.py --new-colors                # characters in body colors that no image has
    python examples/character_auc.py --stories labelled.jsonl    # your own stories, which are not in the training

Run the command in a project that has the stage ``reward_merged``. The first two commands draw panels in the storybook
world. The format of your stories is in docs/reference/formats.md. The intervals are over characters, or over pairs of
stories.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence, Set
from dataclasses import dataclass
from io import BytesIO
from itertools import product
from pathlib import Path

from PIL import Image

from paco_core.benchmarks.characters import evaluate_cases, score_case_embeddings, score_cases
from paco_core.config import params as configuration
from paco_core.config.params import Params
from paco_core.config.params_benchmarks import CLIP_I, REWARD
from paco_core.config.references import model_at
from paco_core.data.pairs.character_stories import add_stories
from paco_core.data.pairs.characters import (
    NEGATIVES,
    CharacterPairs,
    HeldOutCase,
    character_id,
    draw_cases,
    read_held_out_cases,
)
from paco_core.data.records.records import parse_ref
from paco_core.io import paths
from paco_core.io.files import write_json
from paco_core.models.open_clip import OpenClip
from paco_core.reward_model.scorer import Scorer
from paco_core.storybook import drawing
from paco_core.storybook.characters import with_identity
from paco_core.storybook.prompts import character
from paco_core.storybook.world import IDENTITY, VOCABULARY, random_panel

PANELS = 16_000
SHARES = dict.fromkeys(NEGATIVES, 0.125)  # half of the panels are positive
NEW_COLORS: dict[str, drawing.RGB] = {
    "red": (240, 140, 40), "yellow": (240, 150, 195), "green": (135, 88, 48),
    "blue": (40, 160, 160), "purple": (128, 128, 132), "white": (30, 42, 112),
}  # fmt: skip  # orange, pink, brown, teal, gray and navy


def main() -> None:
    parser = argparse.ArgumentParser(description="Validate a reward model on characters.")
    parser.add_argument("--panels", type=int, default=PANELS, help="panels to draw")
    parser.add_argument("--seed", type=int, default=1, help="seed of the drawn panels")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--new-colors", action="store_true", help="draw all characters, with new body colors")
    source.add_argument("--stories", type=Path, help="JSON Lines file of labelled stories; draws no panels")
    parser.add_argument("--output", type=Path, help="JSON file to write the metrics to")
    options = parser.parse_args()
    root = Path()
    params = configuration.load(root / "params.yaml")
    if options.stories:
        characters = CharacterPairs()
        add_stories(characters, options.stories, SHARES, options.seed)
    elif options.new_colors:
        drawing.BODY.update(NEW_COLORS)
        characters = draw_panels(None, options.panels, options.seed, params)
    else:
        held_out = {case.prompt_id for case in read_held_out_cases(root / paths.PAIRS)}
        held_out &= set(map(character_id, drawn_characters()))
        if not held_out:
            parser.error("no drawn character is held out: set pairs.characters.count, and run the stage `pairs`")
        characters = draw_panels(held_out, options.panels, options.seed, params)
    characters.rejected.print(print)
    cases, panels = characters.cases, DecodedPanels(characters.pictures.pngs)
    metrics = print_evaluation(root, params, cases, panels)
    if options.output:
        write_json(options.output, metrics)


def print_evaluation(
    root: Path, params: Params, cases: Sequence[HeldOutCase], panels: DecodedPanels
) -> dict[str, float]:
    """Score cases with the reward model of a project and with CLIP-I, print the table, and return the metrics."""
    scorer = Scorer.configured(root / paths.REWARD_MERGED, params.reward)
    scores = {REWARD: score_cases("reward model", scorer, cases, panels)}
    if params.consistency_rank.clip is not None:
        clip = OpenClip(model_at(root, params.consistency_rank.clip, "consistency_rank.clip"), params.reward.device)
        scores[CLIP_I] = score_case_embeddings("CLIP-I", clip, cases, panels)
    result = evaluate_cases(cases, scores, resamples=params.consistency_rank.bootstrap)
    print(f"{len(cases)} panels, {len({case.prompt_id for case in cases})} characters (or pairs of stories)\n")
    print(result.table().markdown())
    for model, causes in result.causes.items():
        for cause, count in causes.items():
            print(f"{count} panels without a score by {model}: {cause}")
    return result.metrics()


def drawn_characters() -> list[str]:
    """All characters of the storybook world in words, for example "a red cat with a scarf"."""
    panel = random_panel(random.Random(0))
    return [character(with_identity(panel, words)) for words in product(*(VOCABULARY[trait] for trait in IDENTITY))]


def draw_panels(prompt_ids: Set[str] | None, count: int, seed: int, params: Params) -> CharacterPairs:
    """Draw panels of characters that the stage ``pairs`` did not draw.

    Args:
        prompt_ids: of the characters to draw. None draws all characters.
    """
    changes = {"count": count, "shares": SHARES, "seed": seed}
    return draw_cases(params.pairs.characters.model_copy(update=changes), prompt_ids=prompt_ids, stream="validation")


@dataclass(frozen=True)
class DecodedPanels:
    """Decodes panels from PNG files in memory, by id."""

    pngs: dict[str, bytes]

    def panel(self, ref: str) -> Image.Image:
        return Image.open(BytesIO(self.pngs[parse_ref(ref)[0]])).convert("RGB")


if __name__ == "__main__":
    main()
