"""Messages of peers without trust have a limit on their fields, which are counted beforehand."""

import pytest

from trio_kubelet.rpc import Code, RpcError, bounded
from trio_kubelet.rpc.bounded import SMALL_BYTES, check_fields, decode_bounded
from trio_kubelet.rpc.stubs import pluginregistration as registration
from trio_kubelet.rpc.stubs import v1beta1 as devices
from trio_kubelet.rpc.stubs.csi import v1 as csi

TWO_NODES = devices.TopologyInfo(nodes=[devices.NumaNode(id=1), devices.NumaNode(id=2)])
DEVICE = devices.Device(id="a", health="Healthy", topology=TWO_NODES)
FIELDS_OF_A_DEVICE = 8


@pytest.mark.parametrize("count", [1, 1000])
def test_fields_are_counted_at_all_levels(count: int) -> None:
    message = devices.ListAndWatchResponse(devices=[DEVICE] * count)
    check_fields(type(message), bytes(message), FIELDS_OF_A_DEVICE * count)
    with pytest.raises(RpcError) as caught:
        check_fields(type(message), bytes(message), FIELDS_OF_A_DEVICE * count - 1)
    assert caught.value.code is Code.RESOURCE_EXHAUSTED


def test_entries_of_maps_are_counted() -> None:
    topology = csi.Topology(segments={"a": "b", "c": "d"})
    message = csi.NodeGetInfoResponse(node_id="n", accessible_topology=topology)
    fields = 2 + 2 * 3
    check_fields(type(message), bytes(message), fields)
    with pytest.raises(RpcError):
        check_fields(type(message), bytes(message), fields - 1)


@pytest.mark.parametrize(
    "field",
    [b"\xf8\x01\x01", b"\xfa\x01\x00", b"\xf9\x01" + bytes(8), b"\xfd\x01" + bytes(4)],
    ids=["number", "bytes", "eight bytes", "four bytes"],
)
def test_fields_that_nobody_knows_are_counted(field: bytes) -> None:
    check_fields(registration.PluginInfo, field * 10, 10)
    with pytest.raises(RpcError):
        check_fields(registration.PluginInfo, field * 11, 10)


@pytest.mark.parametrize("data", [b"\x0a", b"\x0b", b"\x0a\x80", b"\x80" * 100, b"\xff" * 100])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(RpcError, match=f"cannot decode PluginInfo of {len(data)} bytes") as caught:
        check_fields(registration.PluginInfo, data, 10)
    assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize(
    "end",
    [b"\x0a", b"\x0a\x01\x80", b"\xfb\x01", b"\x0a\x02\xfb\x01"],
    ids=["cut off", "cut off in a message", "group", "group in a message"],
)
async def test_many_fields_before_what_is_no_message_are_not_decoded(
    end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The decoder would make all the nodes, and only then see that the end is no field.
    nodes = devices.TopologyInfo(nodes=[devices.NumaNode(id=1)] * SMALL_BYTES)
    message = devices.ListAndWatchResponse(devices=[devices.Device(topology=nodes)])
    decoded = list[bytes]()
    monkeypatch.setattr(bounded, "decode", lambda _, data: decoded.append(data))
    with pytest.raises(RpcError, match="cannot decode ListAndWatchResponse of"):
        await decode_bounded(type(message), bytes(message) + end, SMALL_BYTES)
    assert decoded == []


def test_a_field_that_is_longer_than_its_message_is_counted_and_left_to_the_decoder() -> None:
    check_fields(registration.PluginInfo, b"\x0a\x05a", 1)


async def test_fields_that_nobody_knows_do_no_harm() -> None:
    message = registration.PluginInfo(name="n" * SMALL_BYTES)
    newer = b"\xf8\x01\x01\xfa\x01\x00\xf9\x01" + bytes(8)
    found = await decode_bounded(type(message), newer + bytes(message) + newer, 10)
    assert found.name == message.name


async def test_a_message_of_too_many_fields_is_not_decoded() -> None:
    message = registration.PluginInfo(supported_versions=["v"] * SMALL_BYTES)
    with pytest.raises(RpcError, match="received message has more than 4095 fields"):
        await decode_bounded(type(message), bytes(message), SMALL_BYTES - 1)
    assert await decode_bounded(type(message), bytes(message), SMALL_BYTES) == message


async def test_a_small_message_is_decoded_without_a_look_at_its_fields() -> None:
    message = registration.PluginInfo(supported_versions=["v"] * 100)
    assert await decode_bounded(type(message), bytes(message), 10) == message
