"""Model cards of reward models: usage, training and golden pairs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from paco_core.models.licence import base_front
from paco_core.reward_model.examples import CHARACTER_TEMPLATE, EDIT_TEMPLATES
from paco_core.reward_model.golden import FOLDER, SERVED
from paco_core.reward_model.instructions import TEMPLATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paco_core.config.params import RewardParams
    from paco_core.reward_model.yes_probability import PairQuery, Score

TAGS = ("reward-model", "consistency", "paco-reward")
COLUMNS = {"accuracy": "accuracy", "roc_auc": "ROC-AUC", "identical_score": "score of identical images"}


def reward_model_card(
    params: RewardParams,
    place: str,
    licence: Mapping[str, str],
    log: Path | None,
    golden: Sequence[tuple[PairQuery, Score]],
) -> str:
    """A Hugging Face model card in Markdown, the same text for the same model.

    Args:
        place: folder of the model, relative to the project.
        licence: licence of the base, for the front matter of the card.
        log: ``training_log.csv`` of the adapter. None if there was no training.
        golden: the golden pairs with their scores.
    """
    front = {**base_front(params.base), **licence, "library_name": "transformers"}
    allowed = SERVED[params.dtype]
    rows = [
        f"| {n} | {query.instruction.replace('|', chr(92) + '|')} | {score.value:.4f} |"
        for n, (query, score) in enumerate(golden)
    ]
    return f"""{_head(front, TAGS)}
# Pairwise consistency reward on {params.base}

This model compares two images: it answers Yes or No first, and then gives reasons (PaCo-Reward, arXiv 2512.04784). The
score is P(Yes) / (P(Yes) + P(No)) at the first answer token, which is the sigmoid of the difference of their logits.
For an edit, the original is the first image.

```python
{_example(place, golden[0][0].instruction) if golden else ""}
```

{_questions_and_training(params, log)}## Golden pairs

A server of this model should return these scores, which were computed in {params.dtype}. Between engines, the
log-odds of Yes may differ by {allowed.worst:g}, and by {allowed.mean:g} on average. The images are in `{FOLDER}/`.

| pair | query | score |
|---|---|---:|
{chr(10).join(rows)}
"""


def adapter_card(params: RewardParams, place: str, licence: Mapping[str, str], log: Path) -> str:
    """The card of an adapter: its queries and training, and code that loads it with its base.

    Args:
        place: folder of the adapter, relative to the project.
    """
    front = {**base_front(params.base, base_model_relation="adapter"), **licence, "library_name": "peft"}
    loading = f"""import torch
from peft import PeftModel
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

processor = AutoProcessor.from_pretrained({params.base!r})
model = AutoModelForImageTextToText.from_pretrained({params.base!r})
model = PeftModel.from_pretrained(model, {place!r}).eval()  # this folder
pictures = [Image.open(file) for file in ("first.png", "second.png")]
question = {TEMPLATES["plain"]!r}
{_ASKING}"""
    return f"""{_head(front, ["lora", *TAGS])}
# Adapter of a pairwise consistency reward for {params.base}

The base model with this adapter compares two images: it answers Yes or No first, and then gives reasons (PaCo-Reward,
arXiv 2512.04784). The score is P(Yes) / (P(Yes) + P(No)) at the first answer token.

```python
{loading}
```

{_questions_and_training(params, log)}The merged model has golden pairs: scores that a server should return.
"""


_ASKING = """\
content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": question}]
messages = [{"role": "user", "content": content}]
text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
inputs = processor(text=[text], images=pictures, return_tensors="pt")
with torch.inference_mode():
    logits = model(**inputs).logits[0, -1].float()
yes, no = (processor.tokenizer(word, add_special_tokens=False).input_ids[0] for word in ("Yes", "No"))
print(torch.sigmoid(logits[yes] - logits[no]).item())"""


def _example(place: str, instruction: str) -> str:
    """Python that scores the first golden pair with transformers only."""
    return f"""import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

folder = {place!r}  # this folder
processor = AutoProcessor.from_pretrained(folder)
model = AutoModelForImageTextToText.from_pretrained(folder).eval()
pictures = [Image.open(f"{{folder}}/{FOLDER}/0-{{side}}.png") for side in ("first", "second")]
question = {instruction!r}
{_ASKING}"""


def _head(front: Mapping[str, object], tags: Sequence[str]) -> str:
    """The front matter of the card, which Hugging Face reads."""
    tree = {**front, "pipeline_tag": "image-text-to-text", "tags": list(tags)}
    return f"---\n{yaml.safe_dump(tree, sort_keys=False)}---\n"


def _questions_and_training(params: RewardParams, log: Path | None) -> str:
    questions = [f"- `{name}`: `{TEMPLATES[name]}`" for name in (params.template, *EDIT_TEMPLATES)]
    return f"""## Queries

The model answers only these queries. Replace `{{theme}}` with the theme of the set, and `{{instruction}}` with the
instruction of the edit.

{chr(10).join(questions)}

If the training data contained character pairs, the model also answers this query about a character `{{name}}`:

- `{CHARACTER_TEMPLATE}`: `{TEMPLATES[CHARACTER_TEMPLATE]}`

## Training

{_training(params)}

{_validation(log)}"""


def _training(params: RewardParams) -> str:
    if params.source != "train":
        return f"None: these are published weights ({params.source} {params.weights})."
    lora, pairs = params.lora, params.batch_size * params.accumulation
    return f"""- LoRA of rank {lora.rank}, alpha {lora.alpha}; vision tower {params.vision}
- {params.epochs} epochs, {pairs} pairs per step, learning rate {params.learning_rate:g}
- loss {params.loss}, alpha {params.alpha:g}, averaged by {params.average}; answers: {params.answers}
- weights of the best epoch by {params.best}; seed {params.seed}"""


def _validation(log: Path | None) -> str:
    """The evaluations of the training, as a section; empty without a training."""
    if log is None:
        return ""
    with log.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row.get("validation_accuracy")]
    names = [name for name in COLUMNS if any(row.get(f"validation_{name}") for row in rows)]
    lines = [
        f"| {row['epoch']} | " + " | ".join(_figure(row.get(f"validation_{name}")) for name in names) + " |"
        for row in rows
    ]
    head = f"| epoch | {' | '.join(COLUMNS[name] for name in names)} |\n|---|" + "---:|" * len(names)
    return f"## Validation pairs, after each epoch\n\n{head}\n" + "\n".join(lines) + "\n\n"


def _figure(text: str | None) -> str:
    return f"{float(text):.4f}" if text else "–"
