"""Every cache of the project gives another key where anything is changed that its values depend on."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from paco_core.config.execution import execution_fields
from paco_core.config.params import PolicyRecipe, RewardParams
from paco_core.data.grids.grids import GenerationSettings
from paco_core.data.llm.chat_protocol import Question, journal_key
from paco_core.data.prompts.prompt_writer import WrittenPrompt
from paco_core.serving.servers.endpoint import server_settings
from tests.support import cache_ingredients

PAGE = "docs/explanation/caching.md"
CASES = [(name, ingredient) for name, cache in cache_ingredients.CACHES.items() for ingredient in cache.alternatives]


@pytest.mark.parametrize(("name", "ingredient"), CASES, ids=[f"{name}: {part}" for name, part in CASES])
def test_another_ingredient_is_another_key(name: str, ingredient: str, tmp_path: Path) -> None:
    cache = cache_ingredients.CACHES[name]
    keys = [
        cache.key(place, **changes)
        for place, changes in (
            (tmp_path / "first", {}),
            (tmp_path / "again", {}),
            (tmp_path / "other", {ingredient: cache.alternatives[ingredient]}),
        )
        if place.mkdir() is None
    ]
    assert keys[0] == keys[1], "equal ingredients in another folder give the same key"
    pairs = zip(*(key if isinstance(key, tuple) else (key,) for key in keys[1:]), strict=True)
    assert any(first != second for first, second in pairs)


@pytest.mark.parametrize("name", cache_ingredients.CACHES)
def test_every_ingredient_is_changed_once(name: str) -> None:
    cache = cache_ingredients.CACHES[name]
    assert set(inspect.signature(cache.key).parameters) == {"folder", *cache.alternatives}


def of_serving(serving: Any, folder: Path) -> object:
    settings = server_settings(cache_ingredients.files(folder / "model", config_json="a"), "name", serving, folder)
    return settings.engine, settings.dtype, settings.device, settings.code, settings.limits


def of_chat(params: Any, _folder: Path) -> object:
    return journal_key(params, Question("1", "?", WrittenPrompt))


#: Section of the parameters, the key that is made of it, and the parameters which change no value that is kept.
SECTIONS: dict[str, tuple[BaseModel, Callable[[Any, Path], object], set[str]]] = {
    "reward": (
        cache_ingredients.REWARD,
        lambda p, f: cache_ingredients.reward_checkpoint(f, params=p),
        execution_fields(RewardParams),
    ),
    "recipe": (
        cache_ingredients.grpo_toys.recipe(),
        lambda p, f: cache_ingredients.policy_checkpoint(f, recipe=p),
        {"epochs", *execution_fields(PolicyRecipe)},
    ),
    "grids": (  # sizes are those of a prompt's record, seeds of a picture; rounding is not counted
        cache_ingredients.PARAMS.grids,
        lambda p, f: GenerationSettings.from_params(p, f).digest,
        {"height", "width", "seeds", "batch_size", "device"},
    ),
    "chat": (  # how long to try, and where a name is served
        cache_ingredients.CHAT,
        of_chat,
        {"base_url", "api_key_env", "in_flight", "timeout_s", "retries", "tries"},
    ),
    "serving": (  # where it listens, how long it is waited for, what clients do; rounding is not counted
        cache_ingredients.SERVING,
        of_serving,
        {
            "host", "port", "threads", "max_batch", "requests_in_flight", "start_timeout_s", "request_timeout_s",
            "linger_s", "max_failed_share", "wait_for_server_s", "both_orders", "picture_format", "score_cache",
            "gateway_port", "python", "tensor_parallel", "gpu_share",
        },
    ),
}  # fmt: skip


def another(value: object) -> object:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case list():
            return [*value, "x"]
        case dict():
            return {**value, "x": 1}
        case _:
            return "x" if value is None else None


@pytest.mark.parametrize("name", SECTIONS)
def test_a_new_parameter_is_a_part_of_the_key_or_named_as_without_influence(name: str, tmp_path: Path) -> None:
    section, key, without = SECTIONS[name]
    original_key = key(section, tmp_path)
    fields = type(section).model_fields
    without_effect = {
        f for f in fields if key(section.model_copy(update={f: another(getattr(section, f))}), tmp_path) == original_key
    }
    assert without_effect == without


def test_the_page_names_every_cache_and_where_its_key_is_made(repository: Path) -> None:
    page = (repository / PAGE).read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    key_functions = [place for row in rows for place in re.findall(r"`(paco_core|dvc_project)([\w.]*):(\w+)`", row[-1])]
    assert len(key_functions) >= len(cache_ingredients.CACHES)
    for package, module, name in key_functions:
        assert hasattr(importlib.import_module(package + module), name), f"{package}{module}:{name}"
    (tested,) = re.findall(r"<!-- tested: (.*) -->", page)
    documented = set(tested.split(", "))
    assert documented == set(cache_ingredients.CACHES)
