"""A run: good pods on a real agent, and anything at all from each of its sources beside them.

Time is a mock clock's, all chance comes from one seed, the runtime is the hollow one and the API
server one in memory, as in the simulation. In each round bad inputs come through every source at
once; then the agent must live, and the containers of the good pods must be the same. At times the
agent is started anew, among whatever lies around by then. At the end the sources are good again,
and a new pod of each must run.
"""

import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
import orjson
import structlog
import trio
import trio.testing
from attrs import frozen
from structlog.typing import EventDict

from tests.apiserver.server import ApiServer
from tests.apiserver.storage import key_of
from tests.fuzz.corpus import (
    REFERRED,
    Document,
    good_pod,
    kept_inside,
    named,
    pod_list,
    pods,
    without_host_paths,
)
from tests.fuzz.host import HostFiles
from tests.fuzz.transports import FuzzedApi, FuzzedRuntime, Noise
from tests.fuzz.values import ValueGenerator, as_json, as_yaml
from tests.simulation.determinism import deterministic
from tests.simulation.node import NODE, ApiTransport, SimulatedAgent, WallClock
from tests.turns import making_test_data
from trio_kubelet.config.model import KubeletConfiguration, NodeOptions
from trio_kubelet.config.settings import Settings
from trio_kubelet.hollow import HollowOptions, HollowRuntime
from trio_kubelet.hollow.host import hollow_host
from trio_kubelet.k8s import CONFIG_MAPS, NODES, PODS, RUNTIME_CLASSES, SECRETS, SERVICES
from trio_kubelet.k8s.kinds import Kind
from trio_kubelet.node.conditions import is_ready
from trio_kubelet.node.host import read_hosts
from trio_kubelet.node.machine import read_machine
from trio_kubelet.pod_source import Source
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.sources.manifests import ManifestReader
from trio_kubelet.sources.static_pods import InvalidManifest, load_pod_documents
from trio_kubelet.volumes import mount

MANIFEST_URL = "http://manifests.test/pods"
FILES_A_ROUND = 24
OBJECTS_A_ROUND = 24
HOST_FILES_A_ROUND = 8
ROUND_SECONDS = 4.0
RESTART_EVERY = 12
SHARE_OF_NOISE = 0.25
SETTLE_SECONDS = 900.0
RUNNING = cri.ContainerState.CONTAINER_RUNNING
_KINDS: Mapping[str, Kind[Any]] = {
    "configmaps": CONFIG_MAPS,
    "secrets": SECRETS,
    "services": SERVICES,
    "runtimeclasses": RUNTIME_CLASSES,
}
_NO_MOUNTS = SimpleNamespace(mount=lambda *_: 0, umount2=lambda *_: 0)
_NOT_OURS = ("rpc service failed",)
"""What the hollow runtime logs of requests that it cannot deal with."""


@frozen(kw_only=True)
class Report:
    """How a run went: inputs by source, and what was found. `seconds` are the node's."""

    seed: int
    inputs: Mapping[str, int]
    findings: tuple[str, ...]
    seconds: float

    @property
    def total(self) -> int:
        """All inputs."""
        return sum(self.inputs.values())


def fuzz(seed: int, inputs: int) -> Report:
    """Send at least so many inputs."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, deterministic(seed):
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(_run, seed, inputs, Path(folder), clock=clock)


async def _run(seed: int, inputs: int, root: Path) -> Report:
    findings: list[str] = []
    began = trio.current_time()
    with ExitStack() as stack:
        stack.enter_context(patch.object(mount, "_libc", _NO_MOUNTS))
        async with trio.open_nursery() as nursery:
            with making_test_data():
                run = Run(seed, root, nursery, findings)
            client = partial(httpx.AsyncClient, transport=httpx.MockTransport(run.answer))
            stack.enter_context(patch.object(httpx, "AsyncClient", client))
            await run.live(inputs)
            nursery.cancel_scope.cancel()
    return Report(
        seed=seed,
        inputs=run.sent(),
        findings=tuple(dict.fromkeys(findings)),
        seconds=trio.current_time() - began,
    )


class Run:
    """One node, its sources, and what has come of it."""

    def __init__(self, seed: int, root: Path, nursery: trio.Nursery, findings: list[str]) -> None:
        self.seed = seed
        self.root = root
        self.nursery = nursery
        self.findings = findings
        self._inputs: Counter[str] = Counter()
        self._named: set[str] = set()
        self._written: list[Path] = []
        self._url_pods = [good_pod("good-url")]
        self._containers: dict[str, tuple[str, ...]] = {}
        self._is_calm = True
        self._agent: SimulatedAgent | None = None
        self._life, self._ended = trio.CancelScope(), trio.Event()
        self._number = 0
        self._chance = random.Random(self.seed)
        self._values = ValueGenerator(self._chance)
        self._clock = WallClock()
        self._runtime = HollowRuntime(
            self._clock, self.nursery, HollowOptions(seed=self.seed, name="containerd")
        )
        self._api = ApiServer(clock=self._clock, seed=self.seed)
        self._cri_noise, self._api_noise = Noise(), Noise()
        self._pods = pods()
        self._manifests = self.root / "manifests"
        self._manifests.mkdir()
        self._machine = read_machine(root)
        self.host = HostFiles(self.root, self._values)
        self._settings = Settings(
            configuration=KubeletConfiguration(
                static_pod_path=str(self._manifests),
                static_pod_url=MANIFEST_URL,
                pod_logs_dir=str(self.root / "logs" / "pods"),
                resolv_conf=str(self.host.resolv_conf),
                healthz_port=0,
                enable_server=False,
                http_check_frequency=timedelta(seconds=1),
                file_check_frequency=timedelta(seconds=1),
            ),
            options=NodeOptions(
                root_dir=str(self.root / "kubelet"),
                hostname_override=NODE,
                node_ip="192.0.2.10",
                hollow=True,
            ),
        )
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                self._on_log,
            ],
            cache_logger_on_first_use=False,
        )

    def sent(self) -> Mapping[str, int]:
        """How many inputs came through each source."""
        return {
            **self._inputs,
            "CRI answers": self._cri_noise.inputs,
            "API answers and frames": self._api_noise.inputs,
        }

    async def live(self, inputs: int) -> None:
        """Good pods first, then rounds of bad inputs, then good ones again."""
        await self._begin()
        rounds = 0
        while sum(self.sent().values()) < inputs:
            rounds += 1
            await self._round()
            if rounds % RESTART_EVERY == 0:
                await self._restart()
            if self._agent is None:
                return
            self._check(f"after round {rounds}")
        await self._settle()
        self._life.cancel()
        await self._ended.wait()

    async def _begin(self) -> None:
        (self._manifests / "good-file.yaml").write_bytes(as_yaml(good_pod("good-file")))
        self._create(good_pod("good-api"))
        self._start()
        await trio.sleep(20)
        for name in (f"good-file-{NODE}", f"good-url-{NODE}", "good-api"):
            self._containers[name] = self._ids(name)
            if len(self._containers[name]) != 1:
                self.findings.append(f"{name} does not run at the beginning")

    async def _round(self) -> None:
        self._is_calm = False
        self._cri_noise.share = self._api_noise.share = SHARE_OF_NOISE
        with making_test_data():
            self._write_files()
            self._put_objects()
            self._write_host_files()
        await trio.sleep(ROUND_SECONDS)
        with making_test_data():
            if self._agent is not None:
                self._check_names()
            self._clear_objects()
        self._cri_noise.share = self._api_noise.share = 0.0
        self._is_calm = True

    async def _settle(self) -> None:
        """All that is bad goes; a new pod from each source must run in the end."""
        for path in self._manifests.iterdir():
            if not path.name.startswith("good-"):
                path.unlink()
        self.host.mend()
        self._api.storage.compact()
        self._api.drop_watches()
        await trio.sleep(SETTLE_SECONDS)
        self._url_pods.append(good_pod("new-url"))
        (self._manifests / "new-file.yaml").write_bytes(as_yaml(good_pod("new-file")))
        self._create(good_pod("new-api"))
        await trio.sleep(60)
        self._check("at the end")
        for name in (f"new-file-{NODE}", f"new-url-{NODE}", "new-api"):
            if len(self._ids(name)) != 1:
                self.findings.append(f"{name} does not run at the end")
        shown = self._api.get(PODS, "new-api", "good").status.phase
        if shown != "Running":
            self.findings.append(f"the API shows new-api as {shown} at the end")
        if not is_ready(self._api.get(NODES, NODE).status.conditions):
            self.findings.append("the API shows the node as not ready at the end")

    def _start(self) -> None:
        self._life, self._ended = trio.CancelScope(), trio.Event()
        runtime = FuzzedRuntime(self._runtime, self._values, self._cri_noise)
        api = FuzzedApi(ApiTransport(self._api), self._values, self._api_noise, self._frame)
        host = hollow_host(runtime, self._machine, partial(read_hosts, self.host.hosts))
        self._agent = SimulatedAgent(self._settings, self._clock, host, api)
        self.nursery.start_soon(self._live, self._agent)

    async def _restart(self) -> None:
        self._life.cancel()
        await self._ended.wait()
        self._inputs["host files"] += self.host.litter(self.root / "kubelet", self.root / "logs")
        self._cri_noise.share = self._api_noise.share = SHARE_OF_NOISE
        self._start()
        await trio.sleep(ROUND_SECONDS)
        self._cri_noise.share = self._api_noise.share = 0.0
        await trio.sleep(ROUND_SECONDS)

    async def _live(self, agent: SimulatedAgent) -> None:
        try:
            with self._life:
                await agent.run()
        except Exception as error:
            self.findings.append(f"the agent ended: {_described(error)}")
        finally:
            self._agent = None
            self._ended.set()

    def _on_log(self, logger: object, method: str, entry: EventDict) -> EventDict:
        error = entry.get("exc_info")
        if error and entry["event"] not in _NOT_OURS:
            facts = {name: value for name, value in entry.items() if name != "exc_info"}
            self.findings.append(f"{facts!r:.400}: {_described(error)}")
        if entry["event"] == "manifest rejected":
            self._named.add(entry["file"])
        raise structlog.DropEvent

    def _ids(self, name: str) -> tuple[str, ...]:
        return tuple(
            container.id
            for container in self._runtime.containers
            if container.config.labels.get("io.kubernetes.pod.name") == name
            and container.state == RUNNING
        )

    def _check(self, when: str) -> None:
        for name, before in self._containers.items():
            if self._ids(name) != before:
                self.findings.append(f"{name} was disturbed, {when}: {before} {self._ids(name)}")

    def _check_names(self) -> None:
        """Whatever file has something wrong with it was named."""
        reader = ManifestReader(source=Source.FILE, node_name=NODE)
        for path in self._written:
            if reader.read(str(path), path.read_bytes()).problems and str(path) not in self._named:
                self.findings.append(f"nobody was told of {path.name}: {path.read_bytes()!r:.300}")

    def _document(self) -> Any:
        """A pod with something wrong in it, or any value at all."""
        self._number += 1
        if self._chance.random() < 0.1:
            return self._values.value()
        document = named(
            self._values.mutated(self._chance.choice(self._pods)), f"bad-{self._number}"
        )
        return kept_inside(document, str(self.root / "host"))

    def _manifest(self) -> bytes:
        """Any bytes, many of them nearly a manifest."""
        write = self._chance.choice((as_json, as_yaml))
        how = self._chance.random()
        if how < 0.1:
            return self._values.data()
        if how < 0.4:
            pod = without_host_paths(self._chance.choice(self._pods))
            return self._values.spoiled_bytes(write(named(pod, f"bad-{self._number}")))
        if how < 0.5:
            return write({"kind": "PodList", "items": [self._document() for _ in range(3)]})
        return write(self._document())

    def _write_files(self) -> None:
        self._named.clear()
        self._written.clear()
        for number in range(FILES_A_ROUND):
            path = self._manifests / f"bad-{number}"
            # Written whole under another name first: half of a file may be a good one.
            other = self.root / "manifest.new"
            data = self._manifest()
            other.write_bytes(data)
            if not path.exists() or path.read_bytes() != data:
                self._written.append(path)
            other.rename(path)
        self._inputs["manifest files"] += FILES_A_ROUND

    def answer(self, request: httpx.Request) -> httpx.Response:
        """What is at the URL of manifests, and anywhere else."""
        if str(request.url) != MANIFEST_URL:
            return httpx.Response(self._chance.choice((200, 500)), content=self._values.data())
        if self._is_calm:
            return httpx.Response(200, content=as_json(pod_list(self._url_pods)))
        self._inputs["URL"] += 1
        if self._chance.random() < 0.5:
            items = [self._document(), *self._url_pods, self._document()]
            body = as_json(pod_list(items))
            return httpx.Response(200, content=body)
        body = self._manifest()
        try:
            documents = load_pod_documents(body)
        except InvalidManifest:
            return httpx.Response(self._chance.choice((200, 404)), content=body)
        return httpx.Response(200, content=as_json(pod_list([*self._url_pods, *documents])))

    def _put_objects(self) -> None:
        for _ in range(OBJECTS_A_ROUND):
            resource = self._chance.choice(("pods", "pods", "pods", *REFERRED))
            if resource == "pods":
                self._put_pod()
            else:
                self._put(_KINDS[resource], self._values.mutated(REFERRED[resource]))
        self._inputs["API objects"] += OBJECTS_A_ROUND

    def _put_pod(self) -> None:
        document = self._document()
        if not isinstance(document, dict):
            return
        metadata = document.get("metadata")
        if isinstance(metadata, dict) and self._chance.random() < 0.9:
            metadata["uid"] = f"uid-{self._number}"
        spec = document.get("spec")
        if isinstance(spec, dict):
            spec["nodeName"] = NODE
        self._put(PODS, document)

    def _put(self, kind: Kind[Any], document: Any) -> None:
        """Store an object, if the server in memory can hold it."""
        try:
            orjson.dumps(document)
            if all(isinstance(part, str) for part in key_of(document)):
                self._api.put_raw(kind, document)
        except Exception:  # its own frames may still come over the wire
            return

    def _clear_objects(self) -> None:
        storage = self._api.storage
        for data in storage.all(("", "pods")):
            if data["metadata"].get("namespace") != "good":
                key = data["metadata"].get("namespace", ""), data["metadata"]["name"]
                storage.remove(("", "pods"), key)

    def _create(self, document: Document) -> None:
        document["spec"]["nodeName"] = NODE
        document["metadata"]["uid"] = f"uid-of-{document['metadata']['name']}"
        self._api.put_raw(PODS, {**document, "status": {"phase": "Pending"}})

    def _frame(self, resource: str) -> bytes:
        """One more frame of a watch: of a pod that nobody has, of the node, or of no form."""
        how = self._chance.random()
        if how < 0.2:
            return self._values.data().replace(b"\n", b" ")
        if resource == "nodes":
            document = self._values.mutated(self._api.storage.get(("", "nodes"), ("", NODE)))
        else:
            document = self._document()
        if isinstance(document, dict) and isinstance(document.get("metadata"), dict):
            version = self._chance.choice((str(self._api.storage.version), self._values.text()))
            document["metadata"]["resourceVersion"] = (
                "" if version.isdecimal() and len(version) > 9 else version
            )
        kind: Any = self._chance.choice(("ADDED", "MODIFIED", "DELETED", "ERROR", "BOOKMARK"))
        frame: Any = {"type": kind, "object": document}
        if how < 0.3:
            frame = {"type": self._values.value(1), "object": document}
        return as_json(frame if how < 0.9 else self._values.mutated(frame))

    def _write_host_files(self) -> None:
        for _ in range(HOST_FILES_A_ROUND):
            for found in self.host.spoil():
                self.findings.append(found)
        self._inputs["host files"] += HOST_FILES_A_ROUND


def _described(error: object) -> str:
    """The innermost error, and where it was raised."""
    if error is True:
        error = sys.exc_info()[1]
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, BaseException):
        return repr(error)
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    where = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames))
    return f"{type(error).__name__}: {str(error)[:200]!r} at {where}"
