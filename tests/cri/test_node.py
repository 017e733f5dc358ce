"""What a runtime says of itself."""

import pytest

from tests.cri.node import Node, Runtime
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri


async def test_it_names_its_api_and_itself(node: Node) -> None:
    version = await node.transport.unary(Runtime.version, cri.VersionRequest())
    assert version.version == "0.1.0"
    assert version.runtime_api_version == "v1"
    assert version.runtime_name
    assert version.runtime_version


async def test_it_takes_a_call_whose_deadline_is_ages_away(node: Node) -> None:
    seconds = float(2**40)
    version = await node.transport.unary(
        Runtime.version, cri.VersionRequest(), deadline_seconds=seconds
    )
    assert version.runtime_name


async def test_it_is_ready_with_its_network(node: Node) -> None:
    answer = await node.transport.unary(Runtime.status, cri.StatusRequest())
    conditions = {condition.type: condition.status for condition in answer.status.conditions}
    assert conditions["RuntimeReady"]
    assert conditions["NetworkReady"]
    assert {handler.name for handler in answer.runtime_handlers} >= {"", "runc"}


async def test_it_names_its_cgroup_driver(node: Node) -> None:
    answer = await node.transport.unary(Runtime.runtime_config, cri.RuntimeConfigRequest())
    assert answer.linux.cgroup_driver == cri.CgroupDriver.CGROUPFS


async def test_it_takes_the_pods_network_range(node: Node) -> None:
    network = cri.NetworkConfig(pod_cidr="10.9.0.0/24")
    request = cri.UpdateRuntimeConfigRequest(
        runtime_config=cri.RuntimeConfig(network_config=network)
    )
    await node.transport.unary(Runtime.update_runtime_config, request)


async def test_it_says_so_when_it_lacks_a_method(node: Node) -> None:
    request = cri.ListMetricDescriptorsRequest()
    with pytest.raises(RpcError) as raised:
        await node.transport.unary(Runtime.list_metric_descriptors, request)
    assert raised.value.code is Code.UNIMPLEMENTED
