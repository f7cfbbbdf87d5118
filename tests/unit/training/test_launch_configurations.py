"""The configurations in launch/: read by accelerate's own loader, and what they set is what the trainer looks for."""

from __future__ import annotations

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

from paco_core.io.shipped import LIBRARY
from paco_core.training.sharding import asked_for

FOLDER = LIBRARY / "launch"
SHARED_OUT = {
    "ddp": None,
    "cpu": None,
    "fsdp2": "fsdp2",
    "fsdp2-cpu": "fsdp2",
    "deepspeed-zero2": "zero2",
    "deepspeed-zero2-cpu": "zero2",
}


def test_every_configuration_is_tested() -> None:
    of_accelerate = {path.stem for path in FOLDER.glob("*.yaml") if "distributed_type" in path.read_text()}
    assert of_accelerate == set(SHARED_OUT)


@pytest.mark.parametrize("name", SHARED_OUT)
def test_a_configuration_starts_several_processes_that_know_what_they_share(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = FOLDER / f"{name}.yaml"
    config = load_config_from_file(str(file))
    assert config.num_processes > 1 and config.mixed_precision == "no"
    given = launch_command_parser().parse_args(["--config_file", str(file), "-m", "paco_core"])
    args, _, _ = _validate_launch_command(given)
    asked = SHARED_OUT[name]
    assert (args.use_fsdp, args.use_deepspeed) == (asked == "fsdp2", asked == "zero2")
    assert asked or args.multi_gpu, "accelerate starts one process for every other kind on a CPU"
    args.deepspeed_fields_from_accelerate_config = ""  # as launch_command sets it, after the look at the arguments
    env = prepare_deepspeed_cmd_env(args)[1] if args.use_deepspeed else prepare_multi_gpu_env(args)
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(
        "paco_core.training.sharding.find_spec", lambda _name: object()
    )  # as if DeepSpeed were installed
    assert asked_for() == asked
