"""Base types of ``params.yaml``: sections, bounded numbers, LoRA and endpoints of chat models."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from paco_core.config.registered import registered
from paco_core.io.text import not_blank

# Every number has an upper bound, far above any use, so that validation detects typing errors.
Positive = Annotated[int, Field(gt=0, le=1_000_000)]
Natural = Annotated[int, Field(ge=0, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # what NumPy and PyTorch both take
Side = Annotated[int, Field(gt=0, le=2**14)]  # of a picture, pixels
DrawnSide = Annotated[int, Field(ge=16, le=2**14)]  # of a picture in which traits can be told apart
Area = Annotated[int, Field(gt=0, le=2**28)]  # of a picture, pixels
MOST_ITEMS = 1_000  # of a list or a mapping
MOST_NUMBER = 2**63
MOST_DRAWN = 100_000  # pictures that the embedded world draws: a few minutes
DrawnCount = Annotated[int, Field(gt=0, le=MOST_DRAWN)]
Resamples = Annotated[int, Field(gt=0, le=100_000)]  # of a bootstrap
MAX_PORT = 65_535
Port = Annotated[int, Field(ge=0, le=MAX_PORT)]  # 0 = any free one
Number = Annotated[float, Field(ge=-1e6, le=1e6)]
AboveZero = Annotated[float, Field(gt=0, le=1e6)]
FromZero = Annotated[float, Field(ge=0, le=1e6)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Family = Annotated[str, registered("policies/families.py", "FAMILIES")]


class Section(BaseModel):
    """A section of the file: immutable, closed to unknown keys, to blank texts, to NaN and infinity.

    params.py reads it strictly.
    The text under a field is its description: the reference page, the JSON schema and `paco params` show it.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @field_validator("*")
    @classmethod
    def _bounded(cls, value: Any) -> Any:
        _validate_bounds(value)
        return value

    @field_validator("*")
    @classmethod
    def _texts_say_something(cls, value: Any) -> Any:
        for text in (value,) if isinstance(value, str) else value if isinstance(value, dict | list | tuple) else ():
            if isinstance(text, str):
                not_blank(text)
        return value


def _validate_bounds(value: Any) -> None:
    """Check the length of lists and mappings, and numbers in mappings of any values."""
    if isinstance(value, list | tuple | dict):
        if len(value) > MOST_ITEMS:
            raise ValueError(f"{len(value)} entries, expected at most {MOST_ITEMS}")
        for inner in value.values() if isinstance(value, dict) else value:
            _validate_bounds(inner)
    elif isinstance(value, int | float) and not abs(value) <= MOST_NUMBER:
        raise ValueError(f"{value} is no finite number below 2^63")


class LoraShape(Section):
    rank: Annotated[int, Field(gt=0, le=2**14)]
    """Rank of the adapter."""
    alpha: Annotated[int, Field(gt=0, le=65_504)]  # as adapters that are read: see ``adapters.reader.LARGEST_UPDATE``
    """LoRA alpha. The adapter's output is scaled by alpha / rank."""


class LoraParams(LoraShape):
    targets: list[str] = Field(min_length=1)
    """Names of the linear layers that get a LoRA adapter."""


class PolicyLora(LoraShape):
    targets: Annotated[list[str], Field(min_length=1)] | None = None
    """Names, or endings of names, of the linear layers that get a LoRA adapter. `null` uses the list of the model
    family."""


class ChatParams(Section):
    """A chat model behind an OpenAI-compatible endpoint. The API key is only in the environment."""

    base_url: str = Field(pattern=r"^https?://[^@\s]+$")
    """Base URL of an OpenAI-compatible endpoint."""
    model: str
    """Model name at the endpoint."""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] | None
    """Environment variable with the API key. `null` sends no key."""
    structured: Literal["json_schema", "json_object", "none"] = "json_schema"
    """Type of structured output that the endpoint supports."""
    in_flight: Positive = 16
    """Maximum concurrent requests."""
    timeout_s: Positive = 120
    """Timeout per request in seconds."""
    retries: Natural = 6
    """Number of retries of a failed request (status 429 or 5xx, or no connection)."""
    tries: Positive = 3
    """Maximum number of answers that paco requests per query, if it rejects an answer as invalid."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Additional keys of the request body."""

    @model_validator(mode="after")
    def _no_reserved_option(self) -> ChatParams:
        if reserved := {"model", "messages", "response_format", "stream", "n"} & self.options.keys():
            raise ValueError(f"options {sorted(reserved)} are set by the client itself; leave them out")
        return self


def _time_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; a path; the name of a folder
        raise ValueError(f"{name!r} is no time zone of the IANA database, such as UTC or Europe/Berlin") from None
    return name


def _device(name: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        why = "; mps computes no float64, which is needed" if name.startswith("mps") else ""
        raise ValueError(f"{name!r}: expected cpu, cuda, or one GPU by its number, such as cuda:1{why}")
    return name


def _distinct(values: list[int]) -> list[int]:
    if len(set(values)) < len(values):
        raise ValueError(f"{values} contains a duplicate")
    return values


DISTINCT = AfterValidator(_distinct)  # of a list
Device = Annotated[str, AfterValidator(_device)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
