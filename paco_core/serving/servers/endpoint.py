"""Endpoint of a reward model: a server that its users share, and that stops after the last one.

The name of a server contains the fingerprint of its model folder, so no policy is trained against another reward:
``paco-reward@<first 12 digits of the folder's md5>``.
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
from paco_core.reward_model.golden import golden_agreement, read_golden
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
EMBEDDED = "paco_core.serving.engines.transformers_app"  # module of the engine "transformers"
CLIENT = "paco_core.serving.client"  # module that sends images and reads scores


def model_fingerprint(folder: Path, root: Path | None = None) -> str:
    """DVC's md5 of a model folder: names and contents of all its files.

    It is computed from the files, not read from ``dvc.lock``. Unchanged files below ``root`` are not read again.

    Raises:
        ServingError: when the folder does not exist or is empty.
    """
    inside = root is not None and folder.is_relative_to(root)
    disk, path = (Workspace(root), folder.relative_to(root).as_posix()) if inside and root else (Workspace(folder), ".")
    if disk.is_hidden(path):  # a version that is laid out below .paco, which .dvcignore lists
        disk = Workspace(disk.root, use_dvcignore=False)
    files = sorted(disk.files(path)) if folder.is_dir() else []
    if not files:
        raise ServingError(f"{folder}: no model there; run `dvc repro reward_merged`")
    return str(disk.md5(path)).removesuffix(".dir")


def served_name(md5: str) -> str:
    return f"paco-reward@{md5[:12]}"


def answer_token_ids(folder: Path) -> tuple[int, int] | None:
    """Ids of "Yes" and "No" in the folder's tokenizer; None if it has no ``tokenizer.json`` or no such tokens."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    yes, no = tokenizer.token_to_id(YES), tokenizer.token_to_id(NO)
    return None if yes is None or no is None else (yes, no)


def _code(serving: ServingParams, root: Path) -> str:
    """Digest of the code of the client and of the engine: paco's code and libraries, or vLLM's environment."""
    if serving.engine == "transformers":
        return code_digest(root, EMBEDDED, CLIENT)
    return digest([environment_digest(owner_root(root) / (serving.python or vllm.PYTHON)), code_digest(root, CLIENT)])


def server_settings(folder: Path, name: str, serving: ServingParams, root: Path) -> ServerSettings:
    """The settings of the server of a model folder."""
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
    """A server of ``model`` at ``url``; ``pid`` is the process id of its supervisor.

    ``engine``, ``dtype``, ``device`` and ``code`` are those of its start. ``serving`` may differ by now.
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
        """The living server of the model in ``folder``; None if there is none.

        Raises:
            ServingError: when the folder contains no model.
        """
        registry = Registry(root)
        record = registry.living(served_name(model_fingerprint(folder, root)))
        return None if record is None else _endpoint(record, folder, serving, registry)

    @classmethod
    @contextmanager
    def lease(cls, folder: Path, serving: ServingParams, root: Path, *, wait: bool = True) -> Iterator[RewardEndpoint]:
        """Lease a server of the model in ``folder``: the living one, or a new private one.

        A private server waits ``execution.serving.linger_s`` for the next lease and then ends, also if its holders are
        killed. If the block fails, the server ends at once.

        Args:
            wait: wait until the server is ready. Otherwise call :meth:`ready` before the first query.

        Raises:
            ServingError: when the server cannot start, or serves another model.
        """
        registry = Registry(root)
        name = served_name(model_fingerprint(folder, root))
        record, lease = registry.acquire(name, server_settings(folder, name, serving, root))
        succeeded = False
        try:
            endpoint = _endpoint(record, folder, serving, registry)
            if wait:
                endpoint.ready()
            yield endpoint
            succeeded = True
        finally:
            registry.release(name, lease, keep_idle=succeeded and serving.linger_s > 0)

    def ready(self) -> None:
        """Wait until the server lists its model, and check its golden scores.

        Raises:
            ServingError: after ``execution.serving.start_timeout_s``, or when the server has died, with the end of its
                log; or when its name or its golden scores are wrong.
        """
        deadline = time.monotonic() + self.serving.start_timeout_s
        _await_models(self.url, self.model, self._registry, self.serving, deadline)
        self.check_golden(timeout_s=max(1.0, deadline - time.monotonic()))  # the engine may still warm up

    @property
    def _registry(self) -> Registry:
        return Registry(self.log.parents[3])

    def check_golden(self, timeout_s: float | None = None) -> float | None:
        """The largest difference of the server's log-odds of Yes from the golden scores; None without golden pairs.

        Raises:
            ServingError: when a difference is larger than the number format explains, or the server serves another
                model.
        """
        with self.client(in_flight=4, timeout_s=timeout_s, plain=True) as client:
            client.check()
            if not (self.folder / GOLDEN_FILE).is_file():
                return None
            golden = read_golden(self.folder)
            scores = client.score([pair.query for pair in golden])
        report, pairs = golden_agreement(golden, scores, self.dtype)
        if not report.holds:
            raise ServingError(
                f"server {self.model} at {self.url} does not serve {self.folder}: its golden scores are {pairs}; "
                f"{report}; see {self.log}"
            )
        return report.worst

    def client(
        self,
        *,
        in_flight: int | None = None,
        timeout_s: float | None = None,
        plain: bool = False,
    ) -> RewardClient:
        """A client of this endpoint with the settings of ``params.yaml``.

        Args:
            in_flight: maximum number of concurrent requests; None = that of ``params.yaml``.
            timeout_s: timeout of a request in seconds; None = that of ``params.yaml``.
            plain: no cache, one order, PNG, no waiting for a server that is down.
        """
        serving = self.serving
        root = self._registry.root
        cache = None if plain or serving.score_cache is None else root / serving.score_cache
        return RewardClient(
            self.url,
            self.model,
            in_flight=in_flight or serving.requests_in_flight,
            timeout_s=timeout_s or serving.request_timeout_s,
            cache=cache,
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
    identity = record.url, record.name, record.pid, record.engine, record.dtype, record.device, record.code
    return RewardEndpoint(*identity, folder, serving, log)


def up(folder: Path, serving: ServingParams, root: Path) -> str:
    """Start a server that runs until :func:`down`, or keep the living one; returns a line with its address."""
    registry = Registry(root)
    name = served_name(model_fingerprint(folder, root))
    settings = server_settings(folder, name, serving, root)
    record, lived = _start_persistent(
        registry, name, settings, lambda started: _endpoint(started, folder, serving, registry).ready()
    )
    return f"{name} {'already serves' if lived else 'serves'} at {record.url} (process {record.pid})"


def gateway(serving: ServingParams, root: Path) -> str:
    """Start the gateway, which serves all models of this project behind one port; returns a line with its address."""
    registry = Registry(root)
    start = ServerSettings(
        GATEWAY, "", serving.host, serving.gateway_port, "", 0.0, lambda _h, _p, fd: launch_gateway(fd, serving, root)
    )

    def ready(started: ServerRecord) -> None:
        _await_models(started.url, GATEWAY, registry, serving, time.monotonic() + serving.start_timeout_s)

    record, lived = _start_persistent(registry, GATEWAY, start, ready)
    return f"every served model {'already answers' if lived else 'answers'} at {record.url} (process {record.pid})"


def _start_persistent(
    registry: Registry, name: str, settings: ServerSettings, ready: Callable[[ServerRecord], object]
) -> tuple[ServerRecord, bool]:
    """Start a server that runs until :func:`down` and wait until it is ready; stop it if that fails.

    Returns:
        The record, and whether the server was running before.
    """
    before = registry.living(name)
    record, lease = registry.acquire(name, settings, keep_alive=True)
    try:
        ready(record)
    except BaseException:
        if before is None:
            registry.stop(name)
        raise
    finally:
        registry.release(name, lease)
    return record, before is not None


def server_status(root: Path) -> Answer:
    """One line per living server: name, address, engine, process, age, leases."""
    registry = Registry(root)
    lines, rows = [], []
    for record in filter(None, map(registry.living, registry.names())):
        lifetime = "until `paco serve down`" if registry.is_persistent(record.name) else "until nobody leases it"
        age, leases = int(time.time() - record.started), registry.leases(record.name)
        rows.append(
            {**to_jsonable(record), "age_s": age, "leases": leases, "kept": registry.is_persistent(record.name)}
        )
        cells = f"process {record.pid}", f"up {age} s", f"{leases} leases", lifetime
        lines.append((record.name, record.url, record.engine, *cells))
    return Answer("\n".join(text_table(lines)) or "no reward model is served; `paco serve up` starts one", rows)


def _chosen(registry: Registry, name: str | None, names: list[str]) -> str:
    if name is None:
        if not names:
            raise ServingError("no server is known here; `paco serve up` starts one")
        return names[-1]
    matches = [existing for existing in registry.names() if name in existing]
    if len(matches) != 1:
        existing = ", ".join(registry.names()) or "none"
        raise ServingError(f"{name!r} names {len(matches)} servers; known are: {existing}")
    return matches[0]


def logs(root: Path, name: str | None = None) -> str:
    """The end of the log of a server, or of the latest server if ``name`` (or a part of it) is None."""
    registry = Registry(root)
    return tail(registry.log(_chosen(registry, name, registry.names())), size=20_000)


def down(root: Path, name: str | None = None) -> str:
    """Stop one server, or all living servers if ``name`` is None; returns one line for each."""
    registry = Registry(root)
    names = [_chosen(registry, name, [])] if name is not None else registry.names()
    stopped = [record for record in map(registry.stop, names) if record is not None]
    lines = [f"stopped {record.name} at {record.url}" for record in stopped]
    return "\n".join(lines) or "no reward model was served"


def check_served(folder: Path, root: Path, serving: ServingParams) -> CheckReport:
    """Check name and golden scores of the living server of the model in ``folder``, without starting a server."""
    try:
        model = served_name(model_fingerprint(folder, root))
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
