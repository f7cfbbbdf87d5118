"""Versions of the reward and of each policy in MLflow's registry: pointers to what DVC keeps, and their aliases."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc_project.file_locks import locked
from dvc_project.lockfile import Lock
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.files import DataError
from paco_core.io.project import owner_root
from paco_core.runtime.provenance.chain import Provenance
from paco_core.runtime.tracking import Adapted, connect, models, tracking_uri
from paco_core.runtime.tracking.database import has_models, sqlite_file
from paco_core.runtime.tracking.models import registered_name
from paco_core.runtime.versions import copy_of_version, folder_of_version, md5_of_folder

CHAMPION, CHALLENGER = "champion", "challenger"
ALIASES = (CHAMPION, CHALLENGER)
REWARD = "reward"
PROVENANCE_FILE = "provenance.json"
OVER_TAG, PATH_TAG, MD5_TAG = "paco.over", "dvc.path", "dvc.md5"
ADAPTER_TAG = "dvc.md5.adapter"  # of the folder of a policy that MLflow keeps a copy of
DECIDED_TAG = "paco.promotion_run"  # holds the provenance
NO_MODEL = "nothing is registered; `paco promote reward` registers the first version"
LOCKS = Path(".paco") / "registry"  # next to a SQLite store, else in the project


def out_of(name: str) -> Path:
    """The out that a name stands for: ``reward``, or a policy's recipe."""
    return paths.REWARD_MERGED if name == REWARD else paths.POLICIES / name


def recorded_md5(lock: Lock, name: str) -> str:
    """DVC's md5 of the recorded out of a name.

    Raises:
        DataError: when no run of it is recorded.
    """
    md5 = lock.md5_of(out_of(name).as_posix())
    if md5 is None:
        stage = paths.REWARD_MERGED.name if name == REWARD else f"{paths.POLICIES.name}@{name}"
        raise DataError(f"{out_of(name)}: dvc.lock records no version of it; run `dvc repro {stage}`")
    return md5


@dataclass(frozen=True)
class Version:
    """A registered version: ``path`` and DVC's ``md5`` of its folder, and the run that records its provenance."""

    name: str
    number: str
    path: str
    md5: str
    run_id: str | None
    over: str | None  # the version that it replaced as champion
    uri: str
    adapter_md5: str | None = None  # of a policy's adapter

    def provenance(self) -> Provenance:
        """The story that was recorded when the version was registered.

        Raises:
            DataError: when the registry's run does not hold it.
        """
        client = connect(self.uri)
        try:
            file = client.download_artifacts(str(self.run_id), PROVENANCE_FILE)
        except Exception as error:  # MLflow raises many types  # noqa: BLE001
            raise DataError(
                f"{self.name} version {self.number}: its recorded provenance cannot be read ({error})"
            ) from None
        return Provenance.from_dict(json.loads(Path(file).read_text()))


class Champions:
    """The registry of a project. Every method raises what MLflow raises when the store does not answer."""

    def __init__(self, root: Path) -> None:
        self.root, self.uri = root, tracking_uri(root)
        self._client = connect(self.uri)

    @classmethod
    def from_store(cls, root: Path) -> Champions | None:
        """The registry, or None if it is a file that nobody has made yet, or that has no model.

        MLflow is imported only for a registry, and makes its file when it is asked.
        """
        file = sqlite_file(tracking_uri(root))
        return None if file is not None and not (file.is_file() and has_models(file)) else cls(root)

    def names(self) -> list[str]:
        """``reward`` and the policies that have versions."""
        model_names = [model.name for model in self._client.search_registered_models()]
        policies = sorted(name.removeprefix("paco-policy-") for name in model_names if name.startswith("paco-policy-"))
        return ([REWARD] if registered_name(REWARD) in model_names else []) + policies

    def at(self, name: str, alias: str) -> Version | None:
        """The version that carries an alias."""
        from mlflow.exceptions import MlflowException

        try:
            return self._version(name, self._client.get_model_version_by_alias(registered_name(name), alias))
        except MlflowException as error:
            if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
                return None
            raise

    def version(self, name: str, number: str) -> Version:
        return self._version(name, self._client.get_model_version(registered_name(name), number))

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock of a registered name. Whoever registers a version or moves an alias holds it.

        It excludes every process of this machine that uses the same SQLite store, or the same project with a server. A
        server that several machines share has no lock: there :meth:`crown` compares the champion right before it moves
        the alias.
        """
        file = sqlite_file(self.uri)
        folder = owner_root(self.root) if file is None else file.parent
        with locked(folder / LOCKS / f"{registered_name(name)}.lock"):
            yield

    def of_md5(self, name: str, md5: str) -> Version | None:
        """The registered version with these bytes."""
        return self._tagged(name, MD5_TAG, md5)

    def of_adapter(self, name: str, md5: str) -> Version | None:
        """The registered version of a policy whose adapter has these bytes."""
        return self._tagged(name, ADAPTER_TAG, md5)

    def _tagged(self, name: str, tag: str, md5: str) -> Version | None:
        query = f"name = '{registered_name(name)}' and tags.`{tag}` = '{md5}'"
        versions = self._client.search_model_versions(query, max_results=1)
        return self._version(name, versions[0]) if versions else None

    def register(
        self, name: str, md5: str, folder: Path, decided: str | None, trained: str | None, adapted: Adapted | None
    ) -> Version:
        """The registered version with these bytes; a new one becomes the challenger.

        Its source is what MLflow loads: the model that the training logged, or one that is logged now if the training
        logged none, or other bytes. The source of the reward, which may be large, is a pointer (``dvc://``) that
        :mod:`paco_core.runtime.tracking.dvc_artifacts` follows.

        Args:
            md5: DVC's md5 of the version.
            folder: a folder with these bytes that no run changes
                (:func:`paco_core.runtime.versions.folder_of_version`).
            decided: the run that decides about it.
            trained: the run that made it.
            adapted: what an adapter belongs to; None for the reward.
        """
        with self.locked(name):
            return self.of_md5(name, md5) or self._create_version(name, md5, folder, decided, trained, adapted)

    def _create_version(
        self, name: str, md5: str, folder: Path, decided: str | None, trained: str | None, adapted: Adapted | None
    ) -> Version:
        from mlflow.exceptions import MlflowException

        model = registered_name(name)
        try:
            self._client.create_registered_model(model, description=_loading(name, adapted))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        path = out_of(name).as_posix()
        trained = trained if trained and self._experiment_of(trained) else None
        adapter = None if adapted is None else folder / "adapter"
        logged = self._logged(name, trained, decided, adapter, adapted)
        source = f"dvc://{path}#{md5}"
        if adapter is not None and logged is not None:
            source = str(self._client.get_logged_model(logged).artifact_location)
        adapter_md5 = {} if adapter is None else {ADAPTER_TAG: md5_of_folder(self.root, adapter)}
        model_version = self._client.create_model_version(
            model,
            source=source,
            run_id=trained or decided,
            tags={PATH_TAG: path, MD5_TAG: md5, **({DECIDED_TAG: decided} if decided else {}), **adapter_md5},
            model_id=logged,
            description=_version_of(path, md5, trained, decided),
        )
        if logged is not None:
            models.name_version(self._client, logged, model, int(model_version.version))
        self._client.set_registered_model_alias(model, CHALLENGER, model_version.version)
        return self._version(name, model_version)

    def _logged(
        self, name: str, trained: str | None, decided: str | None, adapter: Path | None, adapted: Adapted | None
    ) -> str | None:
        """The id of the logged model of a version; of an adapter, one that MLflow loads."""
        model = registered_name(name)
        logged_model = (
            models.model_of(self._client, str(self._experiment_of(trained)), trained, model) if trained else None
        )
        if logged_model is not None and (adapter is None or self._contains(logged_model, adapter)):
            return str(logged_model.model_id)
        if decided is None:
            return None
        experiment, path = self._client.get_run(decided).info.experiment_id, out_of(name)
        tags = {PATH_TAG: path.as_posix()}
        return models.log_model(self._client, experiment, decided, model, tags, adapter, adapted)

    def _contains(self, model: Any, adapter: Path) -> bool:
        """Whether the files of a logged model are this adapter: two runs of one recipe may train different weights."""
        if not models.is_loadable(model):
            return False
        place = self.root / LOCKS
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as aside:
            copy = _downloaded(self.uri, model.artifact_location, Path(aside))
            return copy is not None and md5_of_folder(self.root, copy) == md5_of_folder(self.root, adapter)

    def _experiment_of(self, run_id: str) -> str | None:
        """The experiment of a run; None where it was tracked in another store."""
        from mlflow.exceptions import MlflowException

        try:
            return str(self._client.get_run(run_id).info.experiment_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def crown(self, version: Version, incumbent: Version | None) -> Version | None:
        """Move the alias ``champion`` to a version if ``incumbent`` still carries it; the champion after the call.

        Args:
            incumbent: the champion that the version was compared with; None if there was none.
        """
        model = registered_name(version.name)
        with self.locked(version.name):
            champion, challenger = self.at(version.name, CHAMPION), self.at(version.name, CHALLENGER)
            if (champion and champion.number) != (incumbent and incumbent.number):
                return champion
            if incumbent is not None:
                self._client.set_model_version_tag(model, version.number, OVER_TAG, incumbent.number)
            self._client.set_registered_model_alias(model, CHAMPION, version.number)
            if challenger is not None and challenger.number == version.number:
                self._client.delete_registered_model_alias(model, CHALLENGER)
        return version

    def roll_back(self, name: str) -> tuple[Version, Version]:
        """Give the alias back to the version that the champion replaced; returns (fallen, restored).

        Raises:
            DataError: when there is no champion, or it replaced none.
        """
        with self.locked(name):
            fallen = self.at(name, CHAMPION)
            if fallen is None:
                raise DataError(f"{name} has no champion; `paco promote {name}` makes one")
            if fallen.over is None:
                raise DataError(f"{name} version {fallen.number} is the first champion: there is none to go back to")
            restored = self.version(name, fallen.over)
            model = registered_name(name)
            self._client.set_registered_model_alias(model, CHAMPION, restored.number)
            self._client.set_registered_model_alias(model, CHALLENGER, fallen.number)
        return fallen, restored

    def text(self) -> Answer:
        """One line a name: its champion, its challenger."""
        lines, by_name = [], dict[str, Any]()
        for name in self.names():
            by_alias = {alias: self.at(name, alias) for alias in ALIASES}
            parts = [f"{alias} version {v.number} ({v.path}, {v.md5[:12]})" for alias, v in by_alias.items() if v]
            lines.append(f"{name}: {'; '.join(parts) or 'no alias'}")
            columns = ("number", "path", "md5", "run_id", "over")
            by_name[name] = {alias: v and {key: getattr(v, key) for key in columns} for alias, v in by_alias.items()}
        return Answer("\n".join(lines) or NO_MODEL, by_name)

    def _version(self, name: str, model_version: Any) -> Version:
        tags = model_version.tags
        return Version(
            name,
            str(model_version.version),
            tags[PATH_TAG],
            tags[MD5_TAG],
            tags.get(DECIDED_TAG) or model_version.run_id or None,
            tags.get(OVER_TAG),
            self.uri,
            tags.get(ADAPTER_TAG),
        )


def _version_of(path: str, md5: str, trained: str | None, decided: str | None) -> str:
    """What a version is, for its row on the model's page."""
    runs = [f"{verb} by run {run}" for verb, run in (("trained", trained), ("decided about", decided)) if run]
    return "; ".join([f"`{path}`, md5 {md5.removesuffix('.dir')[:12]}", *runs])


def _loading(name: str, adapted: Adapted | None) -> str:
    """How a registered model is loaded, for its page."""
    uri = f"models:/{registered_name(name)}@{CHAMPION}"
    if adapted is None:
        return (
            f'Within its project: `mlflow.pyfunc.load_model("{uri}")`, `mlflow.artifacts.download_artifacts("{uri}")`.'
        )
    loaded = f'With its base: `mlflow.diffusers.load_model("{uri}").load_pipeline()`.'
    return f'{loaded} From prompts: `mlflow.pyfunc.load_model("{uri}")`.' if adapted.defaults else loaded


def bytes_of(root: Path, version: Version) -> Path:
    """The folder of a registered version, as :func:`paco_core.runtime.versions.folder_of_version` gives it.

    Raises:
        DataError: when nothing contains its bytes; the text names the version.
    """
    try:
        return folder_of_version(root, version.path, version.md5)
    except DataError as error:
        raise DataError(f"{version.name} version {version.number}: {error}") from None


def adapter_of(root: Path, version: Version) -> Path:
    """The adapter of a policy's registered version: from :func:`bytes_of`, else MLflow's copy of the same bytes.

    Raises:
        DataError: when nothing holds them.
    """
    try:
        return bytes_of(root, version) / "adapter"
    except DataError:
        stored_adapter = None if version.adapter_md5 is None else _kept_by_mlflow(root, version, version.adapter_md5)
        if stored_adapter is None:
            raise
        return stored_adapter


def _kept_by_mlflow(root: Path, version: Version, md5: str) -> Path | None:
    """What MLflow logged with the version; None where it is gone, or other bytes."""
    source = connect(version.uri).get_model_version(registered_name(version.name), version.number).source
    return copy_of_version(root, version.path, md5, lambda aside: _downloaded(version.uri, source, aside))


def _downloaded(uri: str, model: str, folder: Path) -> Path | None:
    """A copy of the adapter of a logged model, below ``folder``; None if its files are gone."""
    from mlflow import artifacts
    from mlflow.exceptions import MlflowException

    try:
        return Path(artifacts.download_artifacts(f"{model}/{models.ADAPTER}", dst_path=str(folder), tracking_uri=uri))
    except (MlflowException, OSError):
        return None
