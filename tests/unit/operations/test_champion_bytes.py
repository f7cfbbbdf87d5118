"""Champion files: the bytes that were promoted, whatever is in the workspace and in DVC's cache; or an error."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlflow
import pytest

from dvc_project.cache import Cache
from dvc_project.lockfile import Lock
from paco_core.io.files import DataError
from paco_core.operations import promote as command
from paco_core.operations.named import copy_named_files
from paco_core.operations.promotion.champions import ADAPTER_TAG, CHAMPION, Champions, bytes_of
from paco_core.operations.reevaluation import subject
from paco_core.runtime.tracking.models import registered_name
from paco_core.runtime.versions import VERSIONS_DIR, folder_of_version
from paco_core.serving.servers.endpoint import model_fingerprint
from tests.support import provenance_world as world
from tests.support.promotion_stand import NAME, POLICY, Stand, made_stand

WEIGHTS = "adapter/weights.safetensors"


@pytest.fixture
def stand(project: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return made_stand(project, monkeypatch)


@pytest.fixture
def root(stand: Stand) -> Path:
    """The champion has the weights "adapter"; dvc.lock and git are of it, the workspace holds others."""
    mlflow.set_tracking_uri(f"sqlite:///{stand.root / 'mlflow.db'}")
    command.promote(stand.root, NAME)
    (stand.root / POLICY / WEIGHTS).write_text("another")
    return stand.root


def fetched(root: Path, name: str = f"{NAME}@champion") -> str:
    place = root / "fetched"
    shutil.rmtree(place, ignore_errors=True)
    copy_named_files(root, name, place)
    return (place / "weights.safetensors").read_text()


def gc(root: Path) -> None:
    """What ``dvc gc --workspace`` leaves of a version that the workspace does not use."""
    shutil.rmtree(Cache(root).folder)


@pytest.mark.slow
def test_the_workspace_is_not_believed(root: Path) -> None:
    assert fetched(root) == "adapter"
    champion = Champions(root).at(NAME, CHAMPION)
    assert champion is not None
    assert (subject(root, NAME).folder / WEIGHTS).read_text() == "adapter"
    assert (bytes_of(root, champion) / WEIGHTS).read_text() == "adapter"


@pytest.mark.slow
def test_what_is_read_by_md5_is_never_in_the_workspace(root: Path) -> None:
    """A run or `dvc checkout` replaces the workspace's folder while somebody reads it."""
    (root / POLICY / WEIGHTS).write_text("adapter")
    (root / ".dvcignore").write_text(".paco\n")
    champion = Champions(root).at(NAME, CHAMPION)
    assert champion is not None
    for clean_up in (lambda: None, lambda: gc(root)):  # links into the cache, then a copy of the workspace
        clean_up()
        folder = bytes_of(root, champion)
        assert folder.is_relative_to(root / VERSIONS_DIR) and (folder / WEIGHTS).read_text() == "adapter"
        assert model_fingerprint(folder, root) == champion.md5.removesuffix(".dir")


def test_a_version_that_was_never_promoted_is_not_believed_either(root: Path) -> None:
    mlflow.MlflowClient().delete_registered_model_alias(registered_name(NAME), CHAMPION)
    unpromoted = subject(root, NAME)
    assert unpromoted.version == "not promoted" and (unpromoted.folder / WEIGHTS).read_text() == "adapter"


def test_a_layout_is_made_anew_where_it_was_written_to_or_dangles(root: Path) -> None:
    champion = Champions(root).at(NAME, CHAMPION)
    assert champion is not None
    laid_out = bytes_of(root, champion)
    assert laid_out.is_relative_to(root / VERSIONS_DIR)
    (laid_out / WEIGHTS).unlink()
    assert (bytes_of(root, champion) / WEIGHTS).read_text() == "adapter"
    (laid_out / "more").write_text("x")
    assert not (bytes_of(root, champion) / "more").exists()
    cached = (laid_out / WEIGHTS).resolve()
    cached.write_text("through a link")
    with pytest.raises(DataError, match=WEIGHTS):
        bytes_of(root, champion)
    assert fetched(root) == "adapter", "MLflow's copy"
    cached.write_text("adapter")
    shutil.rmtree(laid_out)
    Cache(root).path(champion.md5).write_text("{}")
    with pytest.raises(DataError):
        bytes_of(root, champion)


@pytest.mark.slow
def test_after_a_clean_up_mlflow_has_a_copy_and_a_challenger_nothing_to_beat(root: Path) -> None:
    (root / POLICY / WEIGHTS).write_text("better")
    world.record(root, {f"policies@{NAME}": [POLICY]})
    gc(root)
    assert fetched(root) == "adapter"
    champion = Champions(root).at(NAME, CHAMPION)
    assert champion is not None
    for read in (lambda: bytes_of(root, champion), lambda: subject(root, NAME), lambda: command.promote(root, NAME)):
        with pytest.raises(DataError, match="version"):
            read()
    champion = Champions(root).at(NAME, CHAMPION)
    assert champion and champion.number == "1", "nothing was decided"


@pytest.mark.parametrize("spoilt", ["other bytes", "gone", "registered before copies were checked"])
def test_a_copy_of_mlflow_that_is_not_the_champion_is_not_handed_out(root: Path, spoilt: str) -> None:
    gc(root)
    (file,) = root.glob("mlartifacts/**/adapter_weights/weights.safetensors")
    if spoilt == "other bytes":
        file.write_text("edited")
    elif spoilt == "gone":
        shutil.rmtree(file.parent)
    else:
        mlflow.MlflowClient().delete_model_version_tag(registered_name(NAME), "1", ADAPTER_TAG)
    with pytest.raises(DataError):
        fetched(root)
    assert not (root / "fetched").exists()


def test_several_lay_out_a_version_at_once(root: Path) -> None:
    md5 = str(Lock.read(root).md5_of(POLICY))
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: folder_of_version(root, POLICY, md5), range(16)))
    assert {(folder / WEIGHTS).read_text() for folder in folders} == {"adapter"}
