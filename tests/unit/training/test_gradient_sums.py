"""The gradients of several processes are summed together: a call for each small tensor would take most of a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from paco_core.training import processes
from paco_core.training.processes import Processes
from paco_core.training.updates import Updates
from tests.support.ranks import together

SHAPES = [(3, 4), (5,), (), (2, 2, 2)]


def sum_gradients(out: Path, bucket_bytes: int) -> None:
    """One rank: an update of parameters of several shapes, whose gradients depend on the rank."""
    processes.BUCKET_BYTES = bucket_bytes
    group = Processes()
    parameters = {str(n): torch.nn.Parameter(torch.ones(shape)) for n, shape in enumerate(SHAPES)}
    updates = Updates(parameters, torch.optim.AdamW(parameters.values()), 1.0, group)
    updates.begin(single_pass=False)
    trained = list(parameters.values())[: 4 - group.rank]  # the second rank has no gradient of the last one
    updates.backward(torch.stack([(group.rank + 1) * (n + 1) * p.sum() for n, p in enumerate(trained)]).sum())
    calls: list[int] = []
    reduce = group.all_reduce

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        calls.append(tensor.numel())
        return reduce(tensor)

    group.all_reduce = counted  # type: ignore[method-assign]
    updates.finish()
    gradients = [parameter.grad.tolist() for parameter in parameters.values() if parameter.grad is not None]
    (out / f"{group.rank}.json").write_text(json.dumps({"calls": calls, "gradients": gradients}))


@pytest.mark.parametrize(("bucket_bytes", "calls"), [(1 << 20, [26]), (8 * 17, [17, 9]), (8, [12, 5, 1, 8])])
def test_gradients_of_two_processes_are_summed_in_few_calls(
    tmp_path: Path, bucket_bytes: int, calls: list[int]
) -> None:
    together(sum_gradients, tmp_path, bucket_bytes, start_method="fork")
    expected = [torch.full(shape, value).tolist() for shape, value in zip(SHAPES, (3.0, 6.0, 9.0, 4.0), strict=True)]
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {"calls": calls, "gradients": expected}
