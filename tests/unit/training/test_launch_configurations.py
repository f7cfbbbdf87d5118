"""The configurations in launch/: read by accelerate's own loader, and what they set is what the trainer looks for."""

from __future__ import annotations

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env

from paco_core.io.shipped import LIBRARY
from paco_core.training.processes import uses_fsdp2

FOLDER = LIBRARY / "launch"
SHARDED = {"ddp": False, "cpu": False, "fsdp2": True, "fsdp2-cpu": True}


def test_every_configuration_is_tested() -> None:
    of_accelerate = {path.stem for path in FOLDER.glob("*.yaml") if "distributed_type" in path.read_text()}
    assert of_accelerate == set(SHARDED)


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
