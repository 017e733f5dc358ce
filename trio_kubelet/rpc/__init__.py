"""gRPC for trio over unix sockets: calls are trio coroutines, and one exception tells of failure.

    async with open_rpc_loop():
        channel = Channel("unix:///run/containerd/containerd.sock")
        version = await channel.unary(cri.RuntimeServiceStub.version, cri.VersionRequest())

The asyncio loop, grpclib and betterproto's codec end here; the generated stubs are under stubs/.
"""

# First of all: it replaces functions of asyncio that grpclib copies when it is imported.
import trio_asyncio  # noqa: F401

# isort: split

from trio_kubelet.rpc.call_metadata import call_metadata, when_sent
from trio_kubelet.rpc.channel import Channel, HostAndPort
from trio_kubelet.rpc.errors import (
    MOST_MESSAGE_CHARACTERS,
    Code,
    RpcError,
    code_name,
    code_of_reset,
    rpc_words,
    unless_gone,
)
from trio_kubelet.rpc.field_cut import FieldCut, Head
from trio_kubelet.rpc.in_process import InProcess
from trio_kubelet.rpc.loop import open_rpc_loop
from trio_kubelet.rpc.messages import encode_ahead, is_present, look_over, present
from trio_kubelet.rpc.methods import Transport
from trio_kubelet.rpc.server import ServerLimits, serve
from trio_kubelet.rpc.wire import ListReuse, decode_entries

__all__ = [
    "MOST_MESSAGE_CHARACTERS",
    "Channel",
    "Code",
    "FieldCut",
    "Head",
    "HostAndPort",
    "InProcess",
    "ListReuse",
    "RpcError",
    "ServerLimits",
    "Transport",
    "call_metadata",
    "code_name",
    "code_of_reset",
    "decode_entries",
    "encode_ahead",
    "is_present",
    "look_over",
    "open_rpc_loop",
    "present",
    "rpc_words",
    "serve",
    "unless_gone",
    "when_sent",
]
