"""Model of a ``Judge``: loaded in this process, or served by a server."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paco_core.config.params import PARAMS_FILE, load
from paco_core.config.references import model_at
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.imports import gc_paused
from paco_core.io.project import find_root, working_folder
from paco_core.models.content import content_of
from paco_core.runtime.placement import one_gpu

if TYPE_CHECKING:
    from paco_core.reward_model.scorer import Scorer
    from paco_core.serving.client import RewardClient

log = logging.getLogger("paco.judge")
Dtype = Literal["float32", "bfloat16"]
COMPUTES = ("paco-rl", "torch", "transformers")  # packages whose versions may move a score
_OTHER_MODELS = 'name another one, a folder or OWNER/NAME on the hub: `paco score --model NAME`, or `Judge("NAME")`'


@dataclass(frozen=True)
class LocalModel:
    """A model for this process, not loaded yet.

    Attributes:
        source: its folder, or its name on the hub.
        pixels: least and most pixels of a picture after resizing; the folder's own bounds where None.
        project: whose parameters divide the GPUs; None outside of a project.
    """

    source: Path | str
    device: str
    dtype: Dtype
    pixels: tuple[int, int] | None
    project: Path | None = None

    @classmethod
    def from_folder(
        cls, root: Path | None, model: str | Path | None, device: str | None, dtype: Dtype | None
    ) -> LocalModel:
        """As a project's parameters say, where there is one, else on a GPU, where there is one."""
        source, pixels, project = _source(root, model), None, None
        if root is not None and (root / PARAMS_FILE).is_file():
            project = root
            reward = load(root / PARAMS_FILE).reward
            device, dtype = device or reward.device, dtype or reward.dtype
            pixels = reward.min_pixels, reward.max_pixels
        elif device is None:
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(source, device, dtype or ("bfloat16" if device.startswith("cuda") else "float32"), pixels, project)

    @property
    def identity(self) -> str:
        """What decides its scores of a question: the model by its content, where and with what it is computed."""
        packages = " ".join(f"{name} {version(name)}" for name in COMPUTES)
        return f"{content_of(self.source)} {self.device} {self.dtype} {self.pixels} {packages}"

    def place(self) -> AbstractContextManager[None]:
        """Within, this process has the GPU that the model is loaded to, as the project divides them."""
        if self.project is None:
            return nullcontext()
        return one_gpu([self.device], f"score in {self.project}", load(self.project / PARAMS_FILE), log.warning)

    def load(self) -> Scorer:
        """The model, after its golden pairs, where its folder has any, got the scores that they were written with.

        Raises:
            DataError: when it is damaged, of another kind or answers otherwise; when there is no such device.
        """
        with gc_paused():
            import torch

            from paco_core.reward_model.golden import validate_golden
            from paco_core.reward_model.scorer import Scorer

        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise DataError(f"device {self.device!r}: PyTorch finds no GPU here; choose the device 'cpu'")
        low, high = self.pixels or (None, None)
        scorer = Scorer(self.source, self.device, self.dtype, min_pixels=low, max_pixels=high)
        if isinstance(self.source, Path):
            validate_golden(self.source, scorer, self.dtype)
        return scorer


@dataclass(frozen=True)
class RemoteModel:
    """A model of a server."""

    address: str
    name: str

    @property
    def identity(self) -> str:
        """What decides its scores of a question: the id carries the fingerprint of its weights."""
        return f"{self.address} {self.name}"

    def place(self) -> AbstractContextManager[None]:
        """Nothing: the server has its GPUs."""
        return nullcontext()

    def load(self) -> RewardClient:
        """A client that was answered.

        Raises:
            ServingError: when no server answers, or it serves another model.
        """
        from paco_core.serving.client import RewardClient
        from paco_core.serving.protocol import ServingError

        client = RewardClient(self.address, self.name)
        try:
            client.check()
        except ServingError:
            client.close()
            raise
        return client


def judge_model(
    model: str | Path | None,
    *,
    device: str | None = None,
    dtype: Dtype | None = None,
    served: str | None = None,
    project: Path | None = None,
) -> LocalModel | RemoteModel:
    """The model that the arguments of :class:`paco_core.Judge` name; nothing is loaded."""
    if isinstance(model, str) and model.startswith(("http://", "https://")):
        if device or dtype:
            raise DataError(f"{model}: a server has its own device and number format; do not set yours")
        return RemoteModel(model, served or _only_model(model))
    if served:
        raise DataError(f"served={served!r} chooses a model of a server; give its address instead of {model!r}")
    return LocalModel.from_folder(project or find_root(), model, device, dtype)


def _only_model(address: str) -> str:
    """The name of the one model that a server has.

    Raises:
        ServingError: when no server answers there, or it has several models.
    """
    from paco_core.serving.client import served_models
    from paco_core.serving.protocol import ServingError

    names = served_models(address)
    if len(names) != 1:
        raise ServingError(f"{address} serves {', '.join(names) or 'no model'}; choose one with served=")
    return names[0]


def _source(root: Path | None, model: str | Path | None) -> Path | str:
    """The model's folder, or its name on the hub."""
    if model is None:
        if root is None:
            raise DataError(f"{working_folder()} lies in no paco project, whose reward could be taken; {_OTHER_MODELS}")
        folder = root / paths.REWARD_MERGED
        if not folder.is_dir():
            trained = "`make demo` or `dvc repro reward_merged` trains it"
            raise DataError(f"{folder}: no reward model there yet; {trained}, or {_OTHER_MODELS}")
        return folder
    here = working_folder()
    place = root if root is not None and not (here / model).is_dir() else here
    if isinstance(model, Path):
        if not (place / model).is_dir():
            raise DataError(f"{model}: there is no model; pass its folder, or its name on the Hub as a string")
        return place / model
    if "/" not in model and not (place / model).is_dir():
        raise DataError(f"{model}: no folder in {place}, and a model on the hub is named OWNER/NAME")
    return model_at(place, model, "model")
