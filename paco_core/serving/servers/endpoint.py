"""The endpoint of a reward model: named by its weights, shared by all who need it, gone soon after the last user.

A server's name carries the fingerprint of the folder that it serves, so that no policy is ever trained
against the wrong reward: ``paco-reward@<first 12 digits of the folder's md5>``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dvc_project.hashing import Workspace
from paco_core.config.params import ServingParams
from paco_core.io.answer import Answer, to_jsonable
from paco_core.io.check_report import CheckReport
from paco_core.io.files import DataError, digest
from paco_core.io.http_client import HttpClient, Patience, RequestFailed
from paco_core.io.project import owner_root
from paco_core.io.text_table import text_table
from paco_core.reward_model.golden import FILE as GOLDEN_FILE
from paco_core.reward_model.golden import agreement, read_golden
from paco_core.reward_model.yes_probability import NO, YES
from paco_core.runtime.code.closure import environment_digest
from paco_core.runtime.code.stage_code import code_digest
from paco_core.runtime.placement import announce_servers
from paco_core.serving.client import RewardClient
from paco_core.serving.engines import launch, launch_gateway, vllm
from paco_core.serving.protocol import ServingError
from paco_core.serving.servers.process import tail
from paco_core.serving.servers.registry import GATEWAY, Registry, ServerRecord, ServerSettings

POLL_S = 0.05
HEALTHY = "reward_endpoint_healthy"  # name of the check
EMBEDDED = "paco_core.serving.engines.transformers_app"  # what computes scores in the engine "transformers"
CLIENT = "paco_core.serving.client"  # what sends pictures and reads scores


def fingerprint(folder: Path, root: Path | None = None) -> str:
    """DVC's md5 of a model folder: names and contents of all its files.

    Computed from the files, so that a folder made by hand is never taken for the recorded one; below ``root`` those
    that have not changed since are not read again.

    Raises:
        ServingError: when the folder does not exist or is empty.
    """
    inside = root is not None and folder.is_relative_to(root)
    disk, path = (Workspace(root), folder.relative_to(root).as_posix()) if inside and root else (Workspace(folder), ".")
    if disk.is_hidden(path):  # a version that is laid out below .paco, which .dvcignore lists
        disk = Workspace(disk.root, heeding=False)
    files = sorted(disk.files(path)) if folder.is_dir() else []
    if not files:
        raise ServingError(f"{folder}: no model there; run `dvc repro reward_merged`")
    return str(disk.md5(path)).removesuffix(".dir")


def served_name(md5: str) -> str:
    return f"paco-reward@{md5[:12]}"


def answer_token_ids(folder: Path) -> tuple[int, int] | None:
    """Ids of "Yes" and "No" in the folder's tokenizer; None where it has no ``tokenizer.json`` or no such tokens."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    yes, no = tokenizer.token_to_id(YES), tokenizer.token_to_id(NO)
    return None if yes is None or no is None else (yes, no)


def _code(serving: ServingParams, root: Path) -> str:
    """What computes scores: our own code and its libraries, or the packages of vLLM's environment; and what asks."""
    if serving.engine == "transformers":
        return code_digest(root, EMBEDDED, CLIENT)
    return digest([environment_digest(owner_root(root) / (serving.python or vllm.PYTHON)), code_digest(root, CLIENT)])


def recipe(folder: Path, name: str, serving: ServingParams, root: Path) -> ServerSettings:
    """How to serve a model folder under a name."""
    model = folder.resolve()
    on_gpu = serving.device.startswith("cuda")
    if on_gpu:
        announce_servers(root)
    return ServerSettings(
        serving.program,
        str(model),
        serving.host,
        serving.port,
        serving.dtype,
        serving.linger_s,
        lambda host, port, descriptor: launch(model, name, host, port, descriptor, serving, owner_root(root)),
        _code(serving, root),
        serving.tensor_parallel if on_gpu else 0,
        serving.device.partition(":")[0],
        digest([serving.max_model_len]),
    )


@dataclass(frozen=True)
class RewardEndpoint:
    """A server that answers as ``model`` at ``url``; ``pid`` is its supervisor's process.

    ``engine``, ``dtype``, ``device`` and ``code`` are those that it was started with, whatever ``serving`` says by now.
    """

    url: str
    model: str
    pid: int
    engine: str
    dtype: str
    device: str
    code: str
    folder: Path
    serving: ServingParams
    log: Path

    @classmethod
    def living(cls, folder: Path, serving: ServingParams, root: Path) -> RewardEndpoint | None:
        """The living server of the model in ``folder``; None where there is none.

        Raises:
            ServingError: when there is no model.
        """
        registry = Registry(root)
        record = registry.living(served_name(fingerprint(folder, root)))
        return None if record is None else _endpoint(record, folder, serving, registry)

    @classmethod
    @contextmanager
    def lease(cls, folder: Path, serving: ServingParams, root: Path, *, wait: bool = True) -> Iterator[RewardEndpoint]:
        """Use a server of the model in ``folder``: the living one of its name, else a new private one.

        A private server waits ``execution.serving.linger_s`` for the next lease and ends, also when its holders are
        killed; a block that fails does not have it wait. With ``wait=False`` the block begins while the server still
        loads; call :meth:`ready` before the first question.

        Raises:
            ServingError: when the server cannot start, or is not what its name says.
        """
        registry = Registry(root)
        name = served_name(fingerprint(folder, root))
        record, lease = registry.join(name, recipe(folder, name, serving, root))
        went_well = False
        try:
            endpoint = _endpoint(record, folder, serving, registry)
            if wait:
                endpoint.ready()
            yield endpoint
            went_well = True
        finally:
            registry.leave(name, lease, lingers=went_well and serving.linger_s > 0)

    def ready(self) -> None:
        """Wait until the server answers under its name and scores the golden pairs as when they were written.

        Raises:
            ServingError: after ``execution.serving.start_timeout_s``, or as soon as the server has died, with the end
                of its log; or when its name or its golden scores are wrong.
        """
        deadline = time.monotonic() + self.serving.start_timeout_s
        _await_models(self.url, self.model, self._registry, self.serving, deadline)
        self.check_golden(timeout_s=max(1.0, deadline - time.monotonic()))  # an engine may warm up at first

    @property
    def _registry(self) -> Registry:
        return Registry(self.log.parents[3])

    def check_golden(self, timeout_s: float | None = None) -> float | None:
        """How far the server's log-odds of Yes lie from those of the golden pairs, at most; None without any.

        Raises:
            ServingError: when they lie farther apart than its number format explains, or the server serves another
                model.
        """
        with self.client(in_flight=4, timeout_s=timeout_s, plain=True) as client:
            client.check()
            if not (self.folder / GOLDEN_FILE).is_file():
                return None
            golden = read_golden(self.folder)
            scores = client.score([pair.query for pair in golden])
        found, pairs = agreement(golden, scores, self.dtype)
        if not found.holds:
            raise ServingError(
                f"server {self.model} at {self.url} does not serve {self.folder}: its golden scores are {pairs}; "
                f"{found}; see {self.log}"
            )
        return found.worst

    def client(
        self,
        *,
        in_flight: int | None = None,
        timeout_s: float | None = None,
        plain: bool = False,
    ) -> RewardClient:
        """A client of this endpoint with the settings of ``params.yaml``.

        Args:
            plain: ask the server itself about each pair as it is: no cache, one order, PNG, no waiting.
        """
        serving = self.serving
        root = self._registry.root
        known = None if plain or serving.score_cache is None else root / serving.score_cache
        return RewardClient(
            self.url,
            self.model,
            in_flight=in_flight or serving.requests_in_flight,
            timeout_s=timeout_s or serving.request_timeout_s,
            cache=known,
            token_ids=answer_token_ids(self.folder),
            patience=Patience(wait_s=0 if plain else serving.wait_for_server_s),
            both_orders=serving.both_orders and not plain,
            picture_format="png" if plain else serving.picture_format,
            engine=" ".join([self.engine, self.dtype, self.code, *([] if self.device == "cpu" else [self.device])]),
            locate=self._locate,
        )

    def leases(self) -> int:
        return self._registry.leases(self.model)

    def _locate(self) -> str | None:
        record = self._registry.living(self.model)
        return None if record is None else record.url


def _await_models(url: str, name: str, registry: Registry, serving: ServingParams, deadline: float) -> None:
    """Wait until a server lists its models."""
    http = HttpClient(url, 5.0, Patience(retries=0))
    while True:
        try:
            http.call("GET", "/v1/models")
            break
        except RequestFailed as error:
            if error.status in (401, 403):
                break
        if registry.living(name) is None:
            raise ServingError(f"server {name} ended while starting:\n{tail(registry.log(name))}")
        if time.monotonic() > deadline:
            limit = f"execution.serving.start_timeout_s = {serving.start_timeout_s}"
            raise ServingError(f"server {name} is not ready within {limit}:\n{tail(registry.log(name))}")
        time.sleep(POLL_S)


def _endpoint(record: ServerRecord, folder: Path, serving: ServingParams, registry: Registry) -> RewardEndpoint:
    log = registry.log(record.name)
    made = record.url, record.name, record.pid, record.engine, record.dtype, record.device, record.code
    return RewardEndpoint(*made, folder, serving, log)


def up(folder: Path, serving: ServingParams, root: Path) -> str:
    """Start a server that stays until :func:`down`, or keep the living one; says where it listens."""
    registry = Registry(root)
    name = served_name(fingerprint(folder, root))
    settings = recipe(folder, name, serving, root)
    record, lived = _kept(registry, name, settings, lambda made: _endpoint(made, folder, serving, registry).ready())
    return f"{name} {'already serves' if lived else 'serves'} at {record.url} (process {record.pid})"


def gateway(serving: ServingParams, root: Path) -> str:
    """Put all models that are served in this project, now or later, behind one port; says which."""
    registry = Registry(root)
    start = ServerSettings(
        GATEWAY, "", serving.host, serving.gateway_port, "", 0.0, lambda _h, _p, fd: launch_gateway(fd, serving, root)
    )

    def ready(made: ServerRecord) -> None:
        _await_models(made.url, GATEWAY, registry, serving, time.monotonic() + serving.start_timeout_s)

    record, lived = _kept(registry, GATEWAY, start, ready)
    return f"every served model {'already answers' if lived else 'answers'} at {record.url} (process {record.pid})"


def _kept(
    registry: Registry, name: str, settings: ServerSettings, ready: Callable[[ServerRecord], object]
) -> tuple[ServerRecord, bool]:
    """A ready server that stays until :func:`down`, and whether it lived before; one that fails is ended."""
    before = registry.living(name)
    record, lease = registry.join(name, settings, stay=True)
    try:
        ready(record)
    except BaseException:
        if before is None:
            registry.stop(name)
        raise
    finally:
        registry.leave(name, lease)
    return record, before is not None


def status(root: Path) -> Answer:
    """One line a living server: name, address, engine, process, age, leases."""
    registry = Registry(root)
    lines, rows = [], []
    for record in filter(None, map(registry.living, registry.names())):
        kept = "until `paco serve down`" if registry.is_kept(record.name) else "until nobody leases it"
        age, leases = int(time.time() - record.started), registry.leases(record.name)
        rows.append({**to_jsonable(record), "age_s": age, "leases": leases, "kept": registry.is_kept(record.name)})
        cells = f"process {record.pid}", f"up {age} s", f"{leases} leases", kept
        lines.append((record.name, record.url, record.engine, *cells))
    return Answer("\n".join(text_table(lines)) or "no reward model is served; `paco serve up` starts one", rows)


def _chosen(registry: Registry, name: str | None, names: list[str]) -> str:
    if name is None:
        if not names:
            raise ServingError("no server is known here; `paco serve up` starts one")
        return names[-1]
    matching = [known for known in registry.names() if name in known]
    if len(matching) != 1:
        known = ", ".join(registry.names()) or "none"
        raise ServingError(f"{name!r} names {len(matching)} servers; known are: {known}")
    return matching[0]


def logs(root: Path, name: str | None = None) -> str:
    """The end of a server's log; of the latest one when ``name`` (or a part of it) is not given."""
    registry = Registry(root)
    return tail(registry.log(_chosen(registry, name, registry.names())), size=20_000)


def down(root: Path, name: str | None = None) -> str:
    """Stop one server, or all living ones when ``name`` is not given; says what was stopped."""
    registry = Registry(root)
    names = [_chosen(registry, name, [])] if name is not None else registry.names()
    stopped = [record for record in map(registry.stop, names) if record is not None]
    lines = [f"stopped {record.name} at {record.url}" for record in stopped]
    return "\n".join(lines) or "no reward model was served"


def check_served(folder: Path, root: Path, serving: ServingParams) -> CheckReport:
    """Ask the living server of the model in ``folder`` for its name and its golden pairs; starts nothing."""
    try:
        model = served_name(fingerprint(folder, root))
        endpoint = RewardEndpoint.living(folder, serving, root)
    except DataError as error:
        return CheckReport(HEALTHY, False, "WARN", str(error))
    if endpoint is None:
        text = f"no server of {model} is up; stages start a private one when they need it"
        return CheckReport(HEALTHY, False, "WARN", text, {"model": model})
    metadata: dict[str, str | int | float] = {
        "model": model,
        "url": endpoint.url,
        "engine": endpoint.engine,
        "process": endpoint.pid,
        "leases": endpoint.leases(),
    }
    began = time.perf_counter()
    try:
        worst = endpoint.check_golden()
    except DataError as error:
        return CheckReport(HEALTHY, False, "ERROR", str(error), metadata)
    metadata["seconds"] = round(time.perf_counter() - began, 3)
    if worst is None:
        return CheckReport(HEALTHY, True, "ERROR", f"{model} answers; its folder has no golden pairs", metadata)
    metadata["golden_difference"] = worst
    text = f"{model} answers; its golden pairs differ by {worst:.2g} in the log-odds of Yes at most"
    return CheckReport(HEALTHY, True, "ERROR", text, metadata)
