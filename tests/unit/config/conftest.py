"""Fixtures that the tests of parameters share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture
def tree(repository: Path) -> Any:
    return yaml.safe_load((repository / "params.yaml").read_text())
