"""What a computing process sets for itself before anything else."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

#: Fills and frees 48 MB five times, each time more than glibc would keep by itself; prints the page faults.
FILL = """
import resource
from paco_core.runtime.process import prepare
{prepare}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
b"x" * (48 << 20)
before = faults()
for _ in range(5):
    b"x" * (48 << 20)
print(faults() - before)
"""


def faults(prepare: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", FILL.format(prepare=prepare)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is set")
def test_freed_memory_is_used_again_without_the_kernel_clearing_it() -> None:
    pages = 5 * (48 << 20) // 4096
    assert faults("") > pages // 2
    assert faults("prepare(1)") < pages // 20
