"""Whatever the OpenAPI description allows, and much that it forbids: no 500, and only answers that it tells of."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from serving_fakes import NAME, FakeModel, served
from test_serving_app import GOOD, request


@pytest.fixture(scope="module")
def description() -> Iterator[Any]:
    """The description of a living server, as it tells it."""
    with served(FakeModel()) as (url, _):
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


GOOD_AND_BAD = list(GenerationMode)  # what the description allows, and what it forbids
OPERATIONS = {
    ("/v1/chat/completions", "POST"): GOOD_AND_BAD,
    ("/v1/models", "GET"): [GenerationMode.POSITIVE],  # nothing can be wrong with a request that holds nothing
    ("/health", "GET"): [GenerationMode.POSITIVE],
    ("/metrics", "GET"): [GenerationMode.POSITIVE],
}
CASES = [(*operation, mode) for operation, modes in OPERATIONS.items() for mode in modes]


@pytest.mark.parametrize(("path", "method", "mode"), CASES, ids=[f"{path} {mode.value}" for path, _, mode in CASES])
def test_no_request_breaks_the_server(description: Any, path: str, method: str, mode: GenerationMode) -> None:
    operation = description[path][method]
    seen: list[int] = []

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        # A schema cannot say "two pictures, then one text": some of what it allows is refused with 400.
        seen.append(case.call_and_validate(timeout=30, excluded_checks=[positive_data_acceptance]).status_code)

    check()
    print(f"\n{method} {path}, {mode.value}: {len(seen)} requests, statuses {sorted(set(seen))}")
    assert not any(status >= 500 for status in seen)


def test_the_list_of_operations_is_whole(description: Any) -> None:
    told = {(path, method.upper()) for path, item in description.raw_schema["paths"].items() for method in item}
    assert told == set(OPERATIONS)


def test_a_real_question_is_answered_as_described(description: Any) -> None:
    answer = description["/v1/chat/completions"]["POST"].Case(body=request([GOOD, GOOD], model=NAME)).call(timeout=30)
    assert answer.status_code == 200
    description["/v1/chat/completions"]["POST"].validate_response(answer)
    first = answer.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert sum(math.exp(entry["logprob"]) for entry in first) == pytest.approx(1.0)


def test_every_reference_of_the_description_leads_somewhere(description: Any) -> None:
    names = {part.split('"')[0] for part in json.dumps(description.raw_schema).split("#/components/schemas/")[1:]}
    assert names <= set(description.raw_schema["components"]["schemas"]) and "ChatRequest" in names
