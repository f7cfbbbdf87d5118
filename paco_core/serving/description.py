"""The OpenAPI description of a server: what it takes, what it answers, how it refuses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from paco_core.serving.protocol import ChatRequest


class ErrorDetail(BaseModel):
    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: None
    code: str


class ErrorAnswer(BaseModel):
    error: ErrorDetail


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    answer_tokens: dict[str, int] | None = None


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class TokenLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChosenToken(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class Logprobs(BaseModel):
    content: list[ChosenToken]


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str


class Choice(BaseModel):
    index: Literal[0]
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length"]


class UsageAnswer(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: UsageAnswer


class Health(BaseModel):
    status: Literal["ok"]
    model: str


ANSWERS = (ErrorAnswer, ModelList, ChatCompletion, Health)
REFUSALS = {
    400: "The request is malformed, or asks for what is not offered",
    401: "Wrong or missing API key",
    403: "Sent by a page of another site, or to another host",
    404: "The model is not served here",
    408: "The body did not arrive, or not in time",
    413: "The body is too large",
    415: "The body is not declared as JSON",
    422: "The model's answer for this pair is not finite",
    500: "The model failed on this pair",
    503: "The server is busy; Retry-After says when to try again",
}


def _content(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}


def _refused(*statuses: int) -> dict[str, Any]:
    return {str(status): {"description": REFUSALS[status], "content": _content(ErrorAnswer)} for status in statuses}


def _answers(model: type[BaseModel], *statuses: int) -> dict[str, Any]:
    """The responses of an operation that answers with ``model``, or refuses with one of ``statuses``."""
    return {"200": {"description": "The answer", "content": _content(model)}, **_refused(*statuses)}


def openapi(title: str) -> dict[str, Any]:
    """The OpenAPI document of the embedded engine's server."""
    inputs = [(ChatRequest, "validation"), *((model, "serialization") for model in ANSWERS)]
    _, definitions = models_json_schema(inputs, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    chat = _answers(ChatCompletion, 400, 401, 403, 404, 408, 413, 415, 422, 500, 503)
    text = {"description": "Prometheus' text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": {
            "/health": {"get": {"summary": "Whether the model answers", "responses": _answers(Health)}},
            "/metrics": {"get": {"summary": "Counts and times", "responses": {"200": text, **_refused(401)}}},
            "/v1/models": {"get": {"summary": "The served model", "responses": _answers(ModelList, 401)}},
            "/v1/chat/completions": {
                "post": {
                    "summary": "A question about two pictures",
                    "requestBody": {"required": True, "content": _content(ChatRequest)},
                    "responses": chat,
                }
            },
        },
        "components": {"schemas": definitions["$defs"]},
    }
