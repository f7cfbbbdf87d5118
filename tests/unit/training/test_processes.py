"""What processes that work together exchange."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paco_core.training import processes as module
from paco_core.training.processes import Processes


def test_a_read_only_array_is_summed_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a picture's is, which a tensor that shares its memory could write into."""
    monkeypatch.setattr(module, "reduce", lambda tensor, how: tensor.mul_({"sum": 2}[how]))
    together: Any = Processes()
    together._state = SimpleNamespace(device=torch.device("cpu"))
    picture = np.asarray(Image.new("RGB", (4, 2), (1, 2, 3)))
    assert not picture.flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summed = together.all_reduce_array(picture)
    assert summed.dtype == np.uint8 and (summed == 2 * np.array([1, 2, 3])).all()
    assert (picture == np.array([1, 2, 3])).all()
