"""The fault suite: `make faults` runs all of it and writes its table; `make test-all` a short part.

``--faults=FILE`` (tests/conftest.py) asks for all of it, and names the Markdown file that the table goes to.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.verdicts import Ledger

RECORDS = ".jsonl"  # beside the table: one line a verdict


def _target(config: pytest.Config) -> Path | None:
    name = config.getoption("--faults")
    return config.invocation_params.dir / name if name else None  # tests work in folders of their own


def pytest_sessionstart(session: pytest.Session) -> None:
    target = _target(session.config)
    if target is not None and not hasattr(session.config, "workerinput"):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.with_suffix(RECORDS).unlink(missing_ok=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if target := _target(config):
        text = Ledger(target.with_suffix(RECORDS)).table()
        target.write_text(text, encoding="utf-8")
        terminalreporter.write_line(f"\n{text}\nwritten to {target}")


@pytest.fixture(scope="session")
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    target = _target(request.config)
    return Ledger(target.with_suffix(RECORDS) if target else tmp_path_factory.mktemp("faults") / "verdicts.jsonl")


@pytest.fixture(scope="session")
def tries(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """How many faults to try: the first number in the whole suite, the second in its short part."""
    is_full_suite = _target(request.config) is not None
    return lambda all_of_them, few: all_of_them if is_full_suite else few


@pytest.fixture(scope="session")
def bare(repository: Path, mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that nothing ran in."""
    from tests.faults import micro

    return micro.prepare(tmp_path_factory.mktemp("bare") / "project", repository, mlflow_template)


@pytest.fixture(scope="session")
def finished(repository: Path, mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project after every stage, none of them disturbed."""
    from paco_core.serving.servers import endpoint
    from tests.faults import micro

    micro.preload()
    root = micro.prepare(tmp_path_factory.mktemp("finished") / "project", repository, mlflow_template)
    for stage in micro.STAGES:
        result = micro.run(root, stage)
        assert result.code == 0, f"{stage}: {result.code}\n{result.text}"
    yield root
    endpoint.down(root)


@pytest.fixture
def finished_copy(finished: Path, tmp_path: Path) -> Path:
    """A finished project to break."""
    return Path(shutil.copytree(finished, tmp_path / "project", symlinks=True))
