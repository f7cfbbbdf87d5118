"""The part of the OpenAI chat protocol that a pairwise reward needs, and its errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from paco_core.io.files import DataError
from paco_core.io.text import validate_marks
from paco_core.io.validation import validation_errors

API_KEY = "PACO_API_KEY"  # environment variable; servers and clients read the same one
MAX_TEXT = 16_384  # characters of a question
MAX_PIXELS = 16_777_216  # 4096 x 4096, of an image
NEW_TOKENS, MAX_NEW_TOKENS = 128, 512  # of an answer, unless the request says otherwise


class ServingError(DataError):
    """A server cannot be started, reached or trusted. The message contains the reason and the remedy."""


class RequestError(Exception):
    """An invalid request.

    Args:
        status: HTTP status.
        message: for people.
        code: for programs.
        retry_after_s: seconds after which a retry may succeed; None = a retry does not help.
    """

    def __init__(
        self, status: int, message: str, code: str = "invalid_request", *, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.retry_after_s = status, message, code, retry_after_s

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's format."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}


class _Request(BaseModel):
    """Part of a request. Unknown fields and implicit conversions are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class _Answer(BaseModel):
    """Part of a server's response. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=())


class ImageUrl(_Request):
    url: str
    detail: Literal["auto"] | None = None


class ImagePart(_Request):
    type: Literal["image_url"]
    image_url: ImageUrl


class TextPart(_Request):
    type: Literal["text"]
    text: Annotated[str, AfterValidator(validate_marks)] = Field(max_length=MAX_TEXT)


Part = Annotated[ImagePart | TextPart, Field(discriminator="type")]


class Message(_Request):
    role: Literal["user"]
    content: list[Part] = Field(min_length=1, max_length=16)


NewTokens = Annotated[int | None, Field(ge=1, le=MAX_NEW_TOKENS)]


class ChatRequest(_Request):
    """``POST /v1/chat/completions``: one user turn of two pictures followed by one text, answered greedily."""

    model: str
    messages: list[Message] = Field(min_length=1, max_length=1)
    max_tokens: NewTokens = None
    max_completion_tokens: NewTokens = None  # OpenAI's newer name of the same
    logprobs: bool | None = False
    top_logprobs: int | None = Field(default=0, ge=0, le=20)
    logprob_token_ids: list[int] | None = Field(default=None, max_length=64)  # vLLM's extension
    temperature: float | None = Field(default=None, ge=0.0, le=0.0)
    n: int | None = Field(default=1, ge=1, le=1)
    stream: Literal[False] | None = False

    @model_validator(mode="after")
    def _logprobs_of_one_token(self) -> ChatRequest:
        if self.logprobs and self.new_tokens > 1:
            raise ValueError("log-probabilities are given for max_tokens (max_completion_tokens) 1 only")
        if not self.logprobs and (self.top_logprobs or self.logprob_token_ids is not None):
            raise ValueError("top_logprobs and logprob_token_ids need logprobs: true")
        if self.top_logprobs and self.logprob_token_ids is not None:
            raise ValueError("top_logprobs: expected 0 with logprob_token_ids, which names the tokens")
        return self

    @property
    def new_tokens(self) -> int:
        """The maximum number of tokens of an answer. If both fields are set, the newer one counts, as in vLLM."""
        return self.max_completion_tokens or self.max_tokens or NEW_TOKENS

    def pictures_and_text(self) -> tuple[tuple[str, str], str]:
        """URLs of the two images, and the instruction.

        Raises:
            RequestError: 400 unless the turn consists of two images and then one text.
        """
        content = self.messages[0].content
        urls = [part.image_url.url for part in content if isinstance(part, ImagePart)]
        texts = [part.text for part in content if isinstance(part, TextPart)]
        if len(urls) != 2:
            raise RequestError(400, f"expected 2 images in the user turn, got {len(urls)}", "image_count")
        if len(texts) != 1 or not isinstance(content[-1], TextPart):
            raise RequestError(400, f"expected one text after the images, got {len(texts)} texts", "text_count")
        return (urls[0], urls[1]), texts[0]

    @classmethod
    def parse(cls, body: bytes) -> ChatRequest:
        """Parse a request body.

        Raises:
            RequestError: 400 with the names of all invalid fields, without their values (they may be images).
        """
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise RequestError(400, "; ".join(validation_errors(error))[:1000]) from None


class AnswerTokens(_Answer):
    """Token ids of "Yes" and "No"."""

    yes: int = Field(alias="Yes", ge=0)
    no: int = Field(alias="No", ge=0)


class ServedModel(_Answer):
    """One model of a server. paco's own server adds ``answer_tokens``."""

    id: str
    answer_tokens: AnswerTokens | None = None


class ServedModels(_Answer):
    """The response of ``GET /v1/models``."""

    data: list[ServedModel]
