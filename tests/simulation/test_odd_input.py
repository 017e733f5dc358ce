"""What the agent's surroundings may hold or say, each as a small scene."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.simulation.node import Node
from tests.simulation.scenes import Scene, play, pod, write_manifest
from trio_kubelet.config.model import NodeOptions
from trio_kubelet.config.settings import Settings
from trio_kubelet.errors import StartError
from trio_kubelet.hollow import HollowRuntime
from trio_kubelet.k8s import EVENTS, PODS, Pod, PodSpec
from trio_kubelet.k8s.codec import decode
from trio_kubelet.k8s.defaults import with_defaults
from trio_kubelet.node.host import read_hosts, read_this_machine
from trio_kubelet.rpc.stubs.runtime import v1 as cri


def with_resolv_conf(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Have the agents of nodes use this file."""
    settings: Callable[[Node], Settings] = Node._settings

    def with_file(node: Node) -> Settings:
        before = settings(node)
        return evolve(before, configuration=evolve(before.configuration, resolv_conf=str(path)))

    monkeypatch.setattr(Node, "_settings", with_file)


def messages(scene: Scene, reason: str) -> set[str]:
    return {e.message for e in scene.node.api.all(EVENTS) if e.reason == reason}


def on_the_host(name: str) -> Pod:
    made = pod(name)
    spec: PodSpec = evolve(made.spec, host_network=True, dns_policy="Default")
    return evolve(made, spec=spec)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"nameserver\n", "nameserver list is empty"),
        (b"# \xff\nnameserver 192.0.2.\xff\n", "line 2 is not UTF-8 text"),
    ],
)
def test_a_bad_resolv_conf_is_named_and_what_is_mended_counts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, problem: str
) -> None:
    file = tmp_path / "resolv.conf"
    file.write_bytes(text)
    with_resolv_conf(monkeypatch, file)

    async def scene(scene: Scene) -> None:
        scene.put(pod())
        await trio.sleep(10)
        assert scene.running() == []
        expected = f"Failed to create pod sandbox: {file}: {problem}"
        assert messages(scene, "FailedCreatePodSandBox") == {expected}
        file.write_bytes(b"nameserver 192.0.2.53\n")
        await trio.sleep(30)
        (container,) = scene.running()
        assert container.sandbox.config.dns_config.servers == ["192.0.2.53"]

    play(tmp_path, scene)


def test_the_hosts_file_is_read_anew_for_each_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    monkeypatch.setattr(Node, "read_hosts", staticmethod(partial(read_hosts, hosts)))

    def seen_by(scene: Scene, name: str) -> bytes:
        uid = scene.node.api.get(PODS, name, "default").metadata.uid
        return (scene.node.pod_folders / uid / "etc-hosts").read_bytes()

    async def scene(scene: Scene) -> None:
        for name, data in (("one", b"192.0.2.1 one\n"), ("two", b"192.0.2.2 t\xff\r\n")):
            hosts.write_bytes(data)
            scene.put(on_the_host(name))
            await trio.sleep(10)
            assert seen_by(scene, name).endswith(data)
        hosts.unlink()
        scene.put(on_the_host("three"))
        await trio.sleep(10)
        (message,) = messages(scene, "Failed")
        assert message.startswith("Error: the node's hosts file cannot be read: ")
        assert len(scene.running()) == 2

    play(tmp_path, scene)


def test_a_cgroup_driver_that_nobody_knows_is_no_reason_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def runtime_config(
        self: HollowRuntime, request: cri.RuntimeConfigRequest
    ) -> cri.RuntimeConfigResponse:
        linux = cri.LinuxRuntimeConfiguration(cgroup_driver=7)  # type: ignore[arg-type]
        return cri.RuntimeConfigResponse(linux=linux)

    monkeypatch.setattr(HollowRuntime, "runtime_config", runtime_config, raising=False)

    async def scene(scene: Scene) -> None:
        scene.put(pod())
        await trio.sleep(10)
        assert len(scene.running()) == 1

    play(tmp_path, scene)


def test_a_manifest_with_a_lone_surrogate_disturbs_nobody(tmp_path: Path) -> None:
    async def scene(scene: Scene) -> None:
        write_manifest(scene.node, pod("good"))
        (scene.node.manifests / "sur.json").write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": "sur"},
                    "spec": {"containers": [{"name": "c", "image": "\ud800x"}]},
                }
            )
        )
        await trio.sleep(30)
        (before,) = scene.running()
        await scene.restart_agent()
        (after,) = scene.running()
        assert after is before

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("volume", "mounted"),
    [
        ({"hostPath": {"path": "/a\0b"}}, {}),
        ({"hostPath": {"path": "/a\0b", "type": "DirectoryOrCreate"}}, {}),
        ({"hostPath": {"path": "/" + "x" * 5000, "type": "Directory"}}, {}),
        ({"emptyDir": {}}, {"subPath": "a\0b"}),
        ({"emptyDir": {}}, {"subPath": "x" * 300}),
        ({"emptyDir": {}}, {"mountPath": "/a\0b"}),
        (
            {
                "downwardAPI": {
                    "items": [{"path": "a\0b", "fieldRef": {"fieldPath": "metadata.name"}}]
                }
            },
            {},
        ),
        (
            {"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "a\0b"}}]}},
            {},
        ),
    ],
)
def test_a_path_that_the_kernel_does_not_take_is_an_event_of_its_pod(
    tmp_path: Path, volume: dict[str, object], mounted: dict[str, object]
) -> None:
    mount = {"name": "v", "mountPath": "/v", **mounted}
    spec = {
        "containers": [{"name": "c", "image": "app", "volumeMounts": [mount]}],
        "volumes": [{"name": "v", **volume}],
    }
    bad = decode(Pod, {"metadata": {"name": "bad", "namespace": "default"}, "spec": spec})

    async def scene(scene: Scene) -> None:
        scene.put(with_defaults(bad))
        scene.put(pod("good"))
        await trio.sleep(20)
        warnings = {e.reason for e in scene.node.api.all(EVENTS) if e.type == "Warning"}
        bad_runs = len(scene.running()) == 2
        assert bool(warnings - {"MissingClusterDNS"}) != bad_runs
        assert "FailedSync" not in warnings
        assert scene.running()

    play(tmp_path, scene)


async def test_a_machine_whose_size_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_bytes(b"\xff\0")
    settings = Settings(options=NodeOptions(root_dir=str(tmp_path)))
    with pytest.raises(StartError, match=r"the size of the machine cannot be read: .*MemTotal"):
        await read_this_machine(settings, tmp_path)
