"""The parameters that plans are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.config.params import Params, load


@pytest.fixture
def params(repository: Path) -> Params:
    return load(repository / "params.yaml")
