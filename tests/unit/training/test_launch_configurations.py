"""Launch configurations: accelerate's own loader reads those in launch/, and the trainer refuses other sharding."""

from __future__ import annotations

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

from paco_core.io.files import DataError
from paco_core.io.shipped import LIBRARY
from paco_core.training.processes import Processes, uses_fsdp2
from tests.support.ranks import FSDP2

FOLDER = LIBRARY / "launch"
SHARDED = {"ddp": False, "cpu": False, "fsdp2": True, "fsdp2-cpu": True}


@pytest.mark.parametrize("name", SHARDED)
def test_a_configuration_starts_several_processes_that_know_what_they_share(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = FOLDER / f"{name}.yaml"
    config = load_config_from_file(str(file))
    assert config.num_processes > 1 and config.mixed_precision == "no"
    args, _, _ = _validate_launch_command(
        launch_command_parser().parse_args(["--config_file", str(file), "-m", "paco_core"])
    )
    assert (args.use_fsdp, args.use_deepspeed) == (SHARDED[name], False)
    assert args.use_fsdp or args.multi_gpu, "accelerate starts one process for every other kind on a CPU"
    for variable, value in prepare_multi_gpu_env(args).items():
        monkeypatch.setenv(variable, value)
    assert uses_fsdp2() == SHARDED[name]


@pytest.mark.parametrize(
    ("env", "key"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DEEPSPEED"),
        ({**FSDP2, "FSDP_VERSION": "1"}, "fsdp_version"),
        ({**FSDP2, "FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params"),
        ({**FSDP2, "FSDP_CPU_RAM_EFFICIENT_LOADING": "True"}, "fsdp_cpu_ram_efficient_loading"),
    ],
)
def test_sharding_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], key: str) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError, match=key):
        Processes()


def test_one_process_alone_shards_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FSDP2.items():
        monkeypatch.setenv(name, value)
    assert not Processes().sharded and Processes().dummy_passes(range(3)) == 0
    two = Processes()
    two.world_size = 2
    two.sharded = True
    assert two.dummy_passes(range(3)) == 0 and two.dummy_passes([1, 3]) == 2 and two.dummy_passes([]) == 0
