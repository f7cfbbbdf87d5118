"""Every cache of the project: what its values depend on, and the key that its code makes of that.

A cache is a function whose keyword arguments are the ingredients, with values to begin with; it calls the code that
makes the key. Beside it stands another value of each ingredient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from paco_core.config.params import ChatParams, RewardParams, load
from paco_core.config.references import contents
from paco_core.data.annotation.people import digest_panels
from paco_core.data.llm.chat_protocol import Question, journal_key
from paco_core.data.prompts.prompt_writer import WrittenPrompt, WrittenPrompts
from paco_core.grpo.recipe import policy_training_key
from paco_core.io.pictures import picture_digest
from paco_core.policies.encodings import encoder_fingerprint, row_key
from paco_core.reward_model.checkpoint import reward_training_key
from paco_core.reward_model.examples import Example
from paco_core.rewards.http_scorer import sample_key
from paco_core.runtime.code.source import reading_key
from paco_core.runtime.tracking.sender import access_digest
from paco_core.serving.cache import query_key
from paco_core.serving.client import RewardClient
from paco_core.serving.servers.endpoint import model_fingerprint as served_fingerprint
from paco_core.serving.servers.endpoint import served_name, server_settings
from tests.support import REPOSITORY, grpo_toys, reward_tiny

PARAMS = load(REPOSITORY / "params.yaml")
CHAT = ChatParams(base_url="http://127.0.0.1:1/v1", model="one", api_key_env=None)
REWARD = RewardParams.model_validate(reward_tiny.PARAMS)
PAIRS = reward_tiny.pairs(4)
RECIPE = grpo_toys.recipe(model="model")
RECORDS = [grpo_toys.record(number) for number in range(4)]
RED, BLUE = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")


@dataclass(frozen=True)
class Cache:
    """``key(folder, **ingredients)`` in an empty folder; ``alternatives`` contains another value of each ingredient."""

    key: Callable[..., object]
    alternatives: Mapping[str, Any]


def of(section: Any, **changes: Any) -> Any:
    """A section of the parameters with other values."""
    return type(section).model_validate({**section.model_dump(), **changes})


def files(folder: Path, **texts: str) -> Path:
    """A folder of these files; ``__`` in a name stands for ``/``, ``_`` before its ending for a dot."""
    for name, text in texts.items():
        head, _, ending = name.replace("__", "/").rpartition("_")
        (folder / f"{head}.{ending}").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{head}.{ending}").write_text(text)
    return folder


def encoders(
    folder: Path, *, model_index_json="a", text_encoder__config_json="a", text_encoder__model_safetensors="a",
    tokenizer__vocab_json="a", vae__config_json="a", processor__preprocessor_config_json="a", dtype="float32",
    device="cpu",
) -> object:  # fmt: skip
    texts = {name: text for name, text in locals().items() if name not in ("folder", "dtype", "device")}
    return encoder_fingerprint(files(folder, **texts), dtype, device)


def reward_checkpoint(
    folder: Path, *, params=REWARD, examples=PAIRS, validation=PAIRS[:2], config_json="a", model_safetensors="a",
    loaded="sample", code="code",
) -> object:  # fmt: skip
    base = files(folder, config_json=config_json, model_safetensors=model_safetensors)
    return reward_training_key(params, examples, validation, base, loaded, code)


def reward_pair(
    folder: Path,
    *,
    id="p",
    pictures=(RED, RED),
    instruction="?",
    answer="Yes.",
    ordered=False,
) -> object:
    pairs = [*PAIRS, Example(id, pictures, instruction, answer, ordered)]
    return reward_training_key(REWARD, pairs, PAIRS, files(folder, config_json="a"), "", "")


def validation_pair(
    folder: Path,
    *,
    id="p",
    pictures=(RED, RED),
    instruction="?",
    answer="Yes.",
    ordered=False,
) -> object:
    pairs = [*PAIRS, Example(id, pictures, instruction, answer, ordered)]
    return reward_training_key(REWARD, PAIRS, pairs, files(folder, config_json="a"), "", "")


def policy_checkpoint(
    folder: Path, *, recipe=RECIPE, train=RECORDS[:2], unseen=RECORDS[2:],
    pictures=(RED, RED), unseen_pictures=(RED, RED), identity="a",
) -> object:  # fmt: skip
    references = [[picture_digest(picture) for picture in part] for part in (pictures, unseen_pictures)]
    return policy_training_key(recipe, train, unseen, references, {"code": identity})


def named_models(
    folder: Path, *, model="a", start="a", rewarded="a", tested="a", prompts="a", test_prompts="a"
) -> object:
    """What a recipe's parameters name, in checkpoints and cells."""
    term = {"weight": 1.0, "reward": "clip_t"}
    sets = {
        key: {"terms": {"clip": {**term, "model": key}}, "aggregator": "weighted_sum", "advantage_std": "group"}
        for key in ("rewards", "test_rewards")
    }
    texts = {
        "model__x_bin": model,
        "start_safetensors": start,
        "rewards__x_bin": rewarded,
        "test_rewards__x_bin": tested,
    }
    files(folder, **texts, train_jsonl=prompts, test_jsonl=test_prompts)
    split = {"train": "train.jsonl", "test": "test.jsonl"}
    return contents(folder, grpo_toys.recipe(model="model", start="start.safetensors", prompts=split, **sets))


def score(
    folder: Path, *, model="paco-reward@1", engine="transformers float32 cpu", picture_format="png", instruction="?",
    first=RED, second=BLUE,
) -> object:  # fmt: skip
    with RewardClient("http://127.0.0.1:1", model, engine=engine, picture_format=picture_format) as client:
        pictures = picture_digest(first), picture_digest(second)
        return query_key(model, client._scoring_fingerprint, instruction, *pictures), client.scoring_identity


def answer(
    folder: Path, *, model="one", structured="json_schema", options="low", id="1", text="?", system="",
    form=WrittenPrompt, images=(RED, BLUE),
) -> object:  # fmt: skip
    params = of(CHAT, model=model, structured=structured, options={"effort": options})
    return journal_key(params, Question(id, text, form, system, images))


def scorers_score(folder: Path, *, model="one", prompt="?", theme="cats", pictures=(RED, BLUE)) -> object:
    """What somebody else's scorer gave to a sample."""
    return sample_key(model, {"prompt": prompt, "theme": theme}, [picture_digest(picture) for picture in pictures])


def ranking(folder: Path, *, reference=RED, candidates=(RED, BLUE)) -> object:
    """What a person ranked."""
    return digest_panels(picture_digest, [reference, *candidates])


def reading(folder: Path, *, data=b"import a\n", package="one") -> object:
    return reading_key(data, package)


def server(
    folder: Path, *, config_json="a", model_safetensors="a", chat_template_jinja="a", serving=PARAMS.serving,
    package="vllm-1.0",
) -> object:  # fmt: skip
    """A server's name, and what another one of that name must agree in."""
    (folder / f".venv-vllm/lib/python3.11/site-packages/{package}.dist-info").mkdir(parents=True)
    (folder / ".venv-vllm/bin").mkdir()
    (folder / ".venv-vllm/bin/python").touch(0o755)
    texts = {
        "config_json": config_json,
        "model_safetensors": model_safetensors,
        "chat_template_jinja": chat_template_jinja,
    }
    model = files(folder / "model", **texts)
    configs = [
        server_settings(model, "name", of(serving, engine=engine), folder) for engine in ("transformers", "vllm")
    ]
    agree = [(config.engine, config.dtype, config.device, config.code, config.limits) for config in configs]
    return served_name(served_fingerprint(model)), agree


def sender(folder: Path, *, store="sqlite:///a", password="a") -> object:
    return access_digest(store, {"AWS_SECRET_ACCESS_KEY": password})


SERVING = PARAMS.serving
OTHER_RECORD = [RECORDS[2].model_copy(update={"prompt": "another text"}), RECORDS[3]]
OTHER_PAIR = {"id": "q", "pictures": (RED, BLUE), "instruction": "!", "answer": "Yes. Both.", "ordered": True}
CACHES = {
    "encoders": Cache(
        encoders,
        {
            "model_index_json": "b", "text_encoder__config_json": "b", "text_encoder__model_safetensors": "b",
            "tokenizer__vocab_json": "b", "vae__config_json": "b", "processor__preprocessor_config_json": "b",
            "dtype": "bfloat16", "device": "cuda",
        },
    ),
    "encoding": Cache(
        lambda folder, *, value=("text", "a", 8), adapters="", precision="highest": row_key(value, adapters, precision),
        {"value": ["text", "a", 9], "adapters": "lora", "precision": "high"},
    ),
    "reward checkpoint": Cache(
        reward_checkpoint,
        {
            "params": of(REWARD, learning_rate=1.0), "examples": PAIRS[1:], "validation": PAIRS[1:2],
            "config_json": "b", "model_safetensors": "b", "loaded": "other", "code": "other",
        },
    ),
    "pair of a reward checkpoint": Cache(reward_pair, OTHER_PAIR),
    "validation pair of a reward checkpoint": Cache(validation_pair, OTHER_PAIR),
    "policy checkpoint": Cache(
        policy_checkpoint,
        {
            "recipe": grpo_toys.recipe(seed=1), "train": OTHER_RECORD,
            "unseen": OTHER_RECORD, "pictures": (RED, BLUE), "unseen_pictures": (RED, BLUE), "identity": "b",
        },
    ),
    "what a recipe names": Cache(
        named_models, dict.fromkeys(("model", "start", "rewarded", "tested", "prompts", "test_prompts"), "b")
    ),
    "score of a scorer": Cache(
        scorers_score, {"model": "two", "prompt": "!", "theme": "dogs", "pictures": (BLUE, RED)}
    ),
    "score of a server": Cache(
        score,
        {
            "model": "paco-reward@2", "engine": "vllm bfloat16 cuda", "picture_format": "jpeg", "instruction": "!",
            "first": BLUE, "second": RED,
        },
    ),
    "answer of a chat model": Cache(
        answer,
        {
            "model": "two", "structured": "none", "options": "high", "id": "2", "text": "!", "system": "be brief",
            "form": WrittenPrompts, "images": (BLUE, RED),
        },
    ),
    "answer of a person": Cache(ranking, {"reference": BLUE, "candidates": (BLUE, RED)}),
    "reading of a source": Cache(reading, {"data": b"import b\n", "package": "two"}),
    "server": Cache(
        server,
        {
            "config_json": "b", "model_safetensors": "b", "chat_template_jinja": "b", "package": "vllm-2.0",
            "serving": of(SERVING, dtype="bfloat16"),
        },
    ),
    "sender": Cache(sender, {"store": "sqlite:///b", "password": "b"}),
}  # fmt: skip
