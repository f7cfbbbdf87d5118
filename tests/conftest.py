"""Shared by all tests: quiet, single-threaded, offline, and with an MLflow store that is ready to copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

# The same examples in each run, and none fails because the machine was busy.
hypothesis.settings.register_profile("paco", deadline=None, derandomize=True)
hypothesis.settings.load_profile("paco")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":
    # PyTorch asks oneDNN whether the processor packs bfloat16, and its own AVX2 kernels then refuse to.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
os.environ.update(
    OMP_WAIT_POLICY="passive",
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    DO_NOT_TRACK="1",
    MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING="false",
    PACO_SENDER_IDLE_S="5",  # no process outlives its test by more
)
REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", metavar="FILE", help="run the whole fault suite, and write its table to this file")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked ``faults`` run only in `make faults`."""
    if config.getoption("--faults") is None:
        left_out = [item for item in items if item.get_closest_marker("faults")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


class WholeFiles(LoadScopeScheduling):
    """Tests of a file stay in one process, and all that share the smoke run.

    The group markers of pytest-xdist 3.8 do nothing under pytest 9.2, whose ids cannot be rewritten.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return "e2e" if file.startswith("tests/e2e/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WholeFiles:
    return WholeFiles(config, log)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Stages set torch's threads for their process; the sums of the next test must not depend on that.

    One, because tests fork this process, and a fork has none of its OpenMP threads.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def mlflow_environment() -> Iterator[None]:
    """Restore the MLflow variables after each test: ``mlflow.set_tracking_uri`` exports its store to the process."""
    before = {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}
    yield
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The project's own root; read it, never write below it."""
    return REPOSITORY


@pytest.fixture(scope="session")
def public_prompts(repository: Path) -> Path:
    """The public T2IS records, where they are at hand."""
    folder = Path(os.environ.get("PACO_T2IS", repository.parent / "shared" / "data" / "t2is"))
    if not (folder / "prompts.jsonl").is_file():
        pytest.skip(f"no public T2IS records in {folder}; set PACO_T2IS to their folder")
    return folder / "prompts.jsonl"


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite store: MLflow needs seconds to make one."""
    store = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    code = f"import mlflow; mlflow.MlflowClient('sqlite:///{store}').search_experiments()"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return store


class SenderThread:
    """The code of the sender in a thread, where a test can put an outage in its way."""

    def __init__(self, root: Path) -> None:
        self._root, self._stop = root, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        from paco_core.runtime.tracking.sender import serve_journals

        serve_journals(self._root, 600, self._stop.is_set)


@pytest.fixture
def sender_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stages that a test runs in its own process are served by a thread; those it starts have their own senders."""
    from paco_core.io.project import owner_root
    from paco_core.runtime import tracking
    from paco_core.runtime.tracking import sender

    threads: list[SenderThread] = []

    def start(root: Path, _environment: Mapping[str, str]) -> SenderThread:
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401  (imports in two threads may meet half-loaded modules)

        threads.append(SenderThread(owner_root(root)))
        return threads[-1]

    monkeypatch.setattr(sender, "start", start)
    monkeypatch.setattr(tracking, "PATIENCE_S", 200.0)  # none of it is spent but on a busy machine
    yield
    for thread in threads:
        thread.stop()


@pytest.fixture
def project(tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch, sender_in_a_thread: None) -> Path:
    """A project root of its own: the real params.yaml and profiles, an MLflow store, no data."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    shutil.copytree(REPOSITORY / "profiles", tmp_path / "profiles")
    shutil.copy(mlflow_template, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path
