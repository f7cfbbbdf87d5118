"""Artifacts behind ``dvc://PATH#MD5``: a folder that DVC keeps, of the project of the working folder.

``mlflow.artifacts.download_artifacts("models:/paco-reward@champion")`` returns the reward's folder, and MLflow has no
second copy of its weights. MLflow finds the class by the entry point ``mlflow.artifact_repository`` of this package.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.utils.uri import validate_path_is_safe

from paco_core.io.project import owner_root, project_root
from paco_core.runtime.versions import folder_of_version

LINKED_BYTES = 1_000_000  # MLflow refuses to read a small file, such as MLmodel, by a link that leaves its folder


class DvcArtifactRepository(LocalArtifactRepository):
    """A version of an out, read-only: from the workspace, or from DVC's cache.

    Raises:
        DataError: when the working folder is in no project, or its cache lacks the version (`dvc fetch` gets it).
    """

    def __init__(self, artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        place = urlsplit(artifact_uri)
        folder = folder_of_version(owner_root(project_root()), f"{place.netloc}{place.path}", place.fragment)
        super().__init__(folder.resolve().as_uri(), tracking_uri, registry_uri)
        self._uri, self._links = artifact_uri, False

    def download_artifacts(self, artifact_path: str, dst_path: str | None = None) -> str:
        """Copies in ``dst_path``; without it a temporary folder where weights, which may be large, are links.

        The folder itself is never returned, because MLflow writes a file into a model that it downloads.
        """
        self._links = dst_path is None
        return str(ArtifactRepository.download_artifacts(self, artifact_path, dst_path))

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        file = Path(self.artifact_dir) / validate_path_is_safe(remote_file_path)
        if self._links and file.stat().st_size >= LINKED_BYTES:
            Path(local_path).symlink_to(file)
        else:
            shutil.copyfile(file, local_path)

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise MlflowException(f"{self._uri}: DVC keeps this version; a stage writes the next one")

    log_artifact = log_artifacts = delete_artifacts = _refuse
