"""The garbage collector: it rests while a model is loaded, and never longer."""

from __future__ import annotations

import gc

import pytest

from paco_core.io.imports import gc_paused, gc_relaxed


def test_the_collector_works_again_after_a_failed_load() -> None:
    @gc_paused()
    def load() -> None:
        assert not gc.isenabled()
        raise OSError("no model there")

    usual = gc.get_threshold()
    with gc_relaxed(), pytest.raises(OSError, match="no model there"):
        assert gc.get_threshold() > usual
        load()
    assert gc.isenabled() and gc.get_threshold() == usual
