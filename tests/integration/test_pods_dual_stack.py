"""Pods with addresses of both families, in the order of the node's own, on a network of the lab."""

import json
import os
from collections.abc import Iterator
from ipaddress import ip_address, ip_network

import pytest

from lab.agent import LabAgent, pod_manifest
from lab.containerd import Containerd
from tests.integration.pods import Node, until_term

SUBNET = f"fd97:6c61:{os.getpid() & 0xFFFF:x}::/64"
TELL = "echo $IPS; echo $HOST_IPS; cat /etc/hosts; cat /etc/resolv.conf; echo end"


@pytest.fixture(scope="module")
def runtime(
    containerd: Containerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """One whose pods have an address of each family."""
    folder = tmp_path_factory.mktemp("dual-stack")
    with Containerd(containerd.wish, folder) as runtime:
        (file,) = (folder / "network").glob("*.conflist")
        network = json.loads(file.read_text())
        bridge = network["plugins"][0]
        bridge["ipMasq"] = False
        bridge["ipam"]["ranges"].append([{"subnet": SUBNET}])
        file.write_text(json.dumps({**network, "plugins": [bridge]}))
        runtime.restart()
        yield runtime


def variable(name: str, path: str) -> dict[str, object]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize("primary", [4, 6])
def test_a_pod_has_its_addresses_in_the_order_of_the_node(
    runtime: Containerd, tmp_path_factory: pytest.TempPathFactory, primary: int
) -> None:
    gateways = [str(next(ip_network(each).hosts())) for each in (runtime.network.subnet, SUBNET)]
    servers = ["192.0.2.53", "2001:db8::53"]
    if primary == 6:
        gateways.reverse()
    flags = ("--node-ip", ",".join(gateways)) if primary == 6 else ()
    folder = tmp_path_factory.mktemp("node")
    settings = {"clusterDNS": servers}
    with LabAgent(folder, endpoint=runtime.endpoint, flags=flags, settings=settings) as agent:
        node = Node(agent=agent, containerd=runtime)
        env = [variable("IPS", "status.podIPs"), variable("HOST_IPS", "status.hostIPs")]
        spec = {"dnsPolicy": "ClusterFirst"}
        pod = node.run(pod_manifest("dual", until_term("c", TELL, env=env), **spec))
        ips = [each["ip"] for each in pod["status"]["podIPs"]]
        assert [ip_address(ip).version for ip in ips] == [primary, 10 - primary]
        assert pod["status"]["podIP"] == ips[0]
        host_ips = [each["ip"] for each in pod["status"]["hostIPs"]]
        assert pod["status"]["hostIP"] == host_ips[0]
        if primary == 6:
            assert host_ips == gateways
        lines = node.wait_for_output(pod, "c", "end")
        assert lines[0].split(",") == ips
        assert lines[1].split(",") == host_ips
        own = [
            line.split("\t")[0] for line in lines if line.endswith(f"\t{pod['metadata']['name']}")
        ]
        assert own == ips
        assert [line.split()[1] for line in lines if line.startswith("nameserver")] == servers
        agent.kill()
        agent.start()
        again = node.wait("dual", lambda pod: pod["status"].get("podIPs"))
        assert [each["ip"] for each in again["status"]["podIPs"]] == ips
