"""A device that cannot compute what is needed is refused where parameters are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from paco_core.config.params import ParamsError, load


@pytest.mark.parametrize("section", ["reward", "grids", "edits"])
@pytest.mark.parametrize(("device", "why"), [("mps", "mps computes no float64"), ("gpu", "expected cpu, cuda")])
def test_a_device_is_a_processor_or_a_gpu_of_cuda(project: Path, section: str, device: str, why: str) -> None:
    tree = yaml.safe_load((project / "params.yaml").read_text())
    tree[section]["device"] = device
    (project / "params.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ParamsError, match=f"{section}.device.*{why}"):
        load(project / "params.yaml")
