"""The start of an agent: its order, and what it tells of the host and of what it could not do."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from attrs import define, evolve
from trio.testing import MockClock

from lab.ports import free_port
from tests.apiserver.server import ApiServer
from tests.trio_clock import TrioClock
from trio_kubelet.agent.cluster import Cluster, Standalone
from trio_kubelet.agent.live_settings import CREDENTIAL_PROVIDERS
from trio_kubelet.agent.ports import Ports
from trio_kubelet.agent.start import Agent
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.config.changes import LIVE
from trio_kubelet.config.gates import FeatureGates, resolve
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.config.parts import (
    KubeletAuthentication,
    KubeletAuthorization,
    KubeletWebhookAuthentication,
)
from trio_kubelet.errors import StartError
from trio_kubelet.hollow import CallFault, HollowOptions, ScriptedFaults, open_hollow_runtime
from trio_kubelet.hollow.host import hollow_host
from trio_kubelet.hollow.runtime import HollowRuntime
from trio_kubelet.k8s.client import ApiClient, ApiClients
from trio_kubelet.kernel.systemd import ServiceNotifier
from trio_kubelet.node.host import CGROUP_V1
from trio_kubelet.node.machine import read_machine
from trio_kubelet.rpc import Code, InProcess, RpcError

READ_WHEN_NEEDED = {
    "crashLoopBackOff.maxContainerRestartPeriod",
    "streamingConnectionIdleTimeout",
}
"""Live settings that no part has to be told of."""

MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: c, image: busybox}], dnsPolicy: Default}
"""


class Service(ServiceNotifier):
    """What the service manager was told."""

    def __init__(self) -> None:
        super().__init__({})
        self.told: list[str] = []

    def ready(self) -> None:
        self.told.append("ready")


class OnlyOthers(Ports):
    """The ports of an agent without its own socket."""

    async def serve(self) -> None:
        await trio.sleep_forever()


class NeverOpen(OnlyOthers):
    """The same, and the port for others does not come to be opened."""

    async def serve_others(self, cluster: Cluster | Standalone, nursery: trio.Nursery) -> None:
        await trio.sleep_forever()


@define
class Start:
    """An agent on a hollow host, before it is run."""

    agent: Agent
    runtime: HollowRuntime
    service: Service
    faults: ScriptedFaults
    manifests: Path

    def told(self) -> list[tuple[str, str]]:
        """The node's events."""
        entries = self.agent.parts.journal.entries("here")
        return [(entry.event, entry.cause) for entry in entries]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.agent.run)
            yield
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def start(
    root: Path,
    *,
    logs: Path | None = None,
    resolv_conf: str = "",
    api: bool | ApiServer = False,
    kind: type[Agent] = Agent,
    ports: type[Ports] = OnlyOthers,
    gates: FeatureGates | None = None,
    **fields: Any,
) -> AsyncIterator[Start]:
    manifests = root / "manifests"
    configuration = evolve(
        KubeletConfiguration(),
        pod_logs_dir=str(logs or root / "logs"),
        static_pod_path=str(manifests),
        healthz_port=0,
        resolv_conf=resolv_conf,
        **{"enable_server": False, "eviction_hard": {}, **fields},
    )
    options = NodeOptions(
        root_dir=str(root), hostname_override="here", cert_dir=str(root / "pki"), hollow=True
    )
    clock, faults, service = TrioClock(), ScriptedFaults(), Service()

    @asynccontextmanager
    async def clients(_traces: object) -> AsyncIterator[ApiClients]:
        def refuse(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("nobody is there", request=request)

        away = ApiClient("http://api.test", httpx.MockTransport(refuse), clock=clock)
        client = api.client() if isinstance(api, ApiServer) else away
        yield ApiClients("http://api.test", client, client, client, client)

    async with open_hollow_runtime(
        clock, HollowOptions(faults=faults, images=("busybox",))
    ) as runtime:
        host = hollow_host(InProcess(runtime), read_machine(root))
        settings = Settings(
            configuration=configuration, options=options, gates=gates or FeatureGates()
        )
        agent = kind(settings, clock, host, service, clients if api else None)
        agent.ports = ports(agent.parts, agent.monitoring)
        yield Start(agent, runtime, service, faults, manifests)


def write(starting: Start) -> None:
    starting.manifests.mkdir(parents=True)
    (starting.manifests / "web.yaml").write_text(MANIFEST)


async def test_the_agent_is_ready_before_its_runtime_is(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with start(tmp_path) as starting:
        write(starting)
        starting.runtime.go_down()
        async with starting.running():
            await trio.sleep(60)
            assert starting.service.told == ["ready"]
            assert not list(starting.runtime.containers)
            starting.runtime.come_back()
            await trio.sleep(60)
            assert len(list(starting.runtime.containers)) == 1


async def test_an_agent_that_has_started_follows_all_live_settings(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with start(tmp_path, api=True) as starting, starting.running():
        await trio.sleep(60)
        followed = starting.agent.parts.live.followed
    assert followed | READ_WHEN_NEEDED == LIVE | {CREDENTIAL_PROVIDERS}


async def test_no_pod_is_started_before_the_first_complete_listing(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with start(tmp_path) as starting:
        write(starting)
        for _ in range(30):
            away = RpcError(Code.UNAVAILABLE, "not yet")
            starting.faults.add("ListContainers", CallFault(error=away))
        async with starting.running():
            await trio.sleep(20)
            assert not list(starting.runtime.sandboxes)
            await trio.sleep(60)
            assert len(list(starting.runtime.sandboxes)) == 1


async def its_pod_starts(starting: Start) -> None:
    write(starting)
    async with starting.running():
        await trio.sleep(60)
        assert len(list(starting.runtime.containers)) == 1


async def test_static_pods_start_while_the_api_server_is_away(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with start(tmp_path, api=True) as starting:
        await its_pod_starts(starting)


@pytest.mark.parametrize(
    ("root", "logs", "words", "setting"),
    [
        ("null/root", "logs", "root directory: mkdir {0}/null", "--root-dir"),
        ("root", "null/logs", 'pod logs root directory "{0}/null/logs": mkdir {0}', "podLogsDir"),
    ],
)
async def test_a_folder_that_cannot_be_made_ends_the_start_with_an_event(
    tmp_path: Path, root: str, logs: str, words: str, setting: str
) -> None:
    os.close(os.open(tmp_path / "null", os.O_CREAT))
    async with start(tmp_path / root, logs=tmp_path / logs) as starting:
        with pytest.raises(StartError, match=f"check {setting}"):
            await starting.agent.run()
        (_, (event, message)) = starting.told()
    assert event == "KubeletSetupFailed"
    assert message.startswith(f"error creating {words.format(tmp_path)}")
    assert message.endswith(": not a directory")


async def test_the_root_folder_has_what_every_agent_needs(tmp_path: Path) -> None:
    root = tmp_path / "var" / "kubelet"
    async with start(root) as at:
        at.agent.parts.make_folders()
        at.agent.parts.make_folders()
    modes = {each.name: oct(each.stat().st_mode & 0o7777) for each in root.iterdir()}
    expected = dict.fromkeys(("pods", "plugins", "plugins_registry", "pod-resources"), "0o750")
    expected["checkpoints"] = "0o700"
    assert {name: modes[name] for name in expected} == expected


@pytest.mark.parametrize("on", [False, True])
async def test_the_folder_of_the_pods_socket_is_there_with_its_gate(
    tmp_path: Path, *, on: bool
) -> None:
    async with start(tmp_path, gates=resolve({"PodsAPI": on}).gates) as at:
        at.agent.parts.make_folders()
    folder = tmp_path / "pods-api"
    assert folder.exists() == on
    assert not on or oct(folder.stat().st_mode & 0o7777) == "0o750"


async def test_what_the_host_warns_of_are_events(tmp_path: Path) -> None:
    async with start(tmp_path) as starting:
        parts = starting.agent.parts
        parts.host = evolve(parts.host, warnings=lambda: (CGROUP_V1,))
        await starting.agent.warn_of_host()
        assert starting.told() == [(CGROUP_V1.reason, CGROUP_V1.message)]


async def test_without_a_kernel_there_is_nothing_to_warn_of(tmp_path: Path) -> None:
    async with start(tmp_path) as starting:
        await starting.agent.warn_of_host()
        assert starting.told() == []


async def test_a_resolv_conf_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    async with start(tmp_path, resolv_conf=f"{tmp_path}/none") as starting:
        await starting.agent.warn_of_host()
        assert starting.told() == [
            ("CheckLimitsForResolvConf", f"open {tmp_path}/none: no such file or directory")
        ]


async def test_pods_do_not_wait_for_a_port_that_cannot_be_opened_yet(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with start(tmp_path, ports=NeverOpen) as starting:
        await its_pod_starts(starting)


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_server_that_is_switched_off_listens_nowhere(tmp_path: Path, enabled: bool) -> None:
    port = free_port()
    local: dict[str, Any] = {
        "enable_server": enabled,
        "port": port,
        "address": "127.0.0.1",
        "authorization": KubeletAuthorization(mode="AlwaysAllow"),
        "authentication": KubeletAuthentication(
            webhook=KubeletWebhookAuthentication(enabled=False)
        ),
    }
    with trio.fail_after(60):
        async with start(tmp_path, **local) as starting, trio.open_nursery() as nursery:
            await starting.agent.ports.serve_others(Standalone(), nursery)
            with nullcontext() if enabled else pytest.raises(OSError, match="attempts"):
                await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
            nursery.cancel_scope.cancel()
