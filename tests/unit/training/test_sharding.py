"""What a launch configuration asks to share out: done, or refused with what to do."""

from __future__ import annotations

import pytest

from paco_core.io.files import DataError
from paco_core.training.processes import Processes
from tests.support.ranks import FSDP2


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DEEPSPEED was removed in 0.3; use launch/fsdp2.yaml"),
        ({**FSDP2, "FSDP_VERSION": "1"}, "fsdp_version.*use launch/fsdp2.yaml"),
        ({**FSDP2, "FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params.*set it to false"),
        ({**FSDP2, "FSDP_CPU_RAM_EFFICIENT_LOADING": "True"}, "fsdp_cpu_ram_efficient_loading.*set it to false"),
    ],
)
def test_sharding_of_another_kind_is_refused(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], message: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError, match=message):
        Processes()


def test_one_process_alone_shards_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FSDP2.items():
        monkeypatch.setenv(name, value)
    assert not Processes().sharded and Processes().dummy_passes(range(3)) == 0
    two = Processes()
    two.world_size = 2
    two.sharded = True
    assert two.dummy_passes(range(3)) == 0 and two.dummy_passes([1, 3]) == 2 and two.dummy_passes([]) == 0
