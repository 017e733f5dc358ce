"""Large answers come in few frames, and no frame's bytes are written out for a log."""

from pathlib import Path

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from hyperframe.frame import DataFrame

from trio_kubelet.rpc import Channel
from trio_kubelet.rpc.connection import LARGEST_FRAME
from trio_kubelet.rpc.loop import RpcLoop
from trio_kubelet.rpc.stubs.runtime import v1 as cri

ANSWER_BYTES = 4 * LARGEST_FRAME


async def answer_in_large_frames(listener: trio.SocketListener, sizes: list[int]) -> None:
    """Answer one call with frames as large as the client takes."""
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    message = bytes(cri.VersionResponse(version="x" * ANSWER_BYTES))
    data = b"\0" + len(message).to_bytes(4, "big") + message
    async with await listener.accept() as stream:
        await stream.send_all(server.data_to_send())
        async for received in stream:
            for event in server.receive_data(received):
                if not isinstance(event, RequestReceived):
                    continue
                call = event.stream_id
                headers = [(":status", "200"), ("content-type", "application/grpc")]
                server.send_headers(call, headers)
                size = server.max_outbound_frame_size
                for start in range(0, len(data), size):
                    server.send_data(call, data[start : start + size])
                    sizes.append(len(data[start : start + size]))
                server.send_headers(call, [("grpc-status", "0")], end_stream=True)
            await stream.send_all(server.data_to_send())


async def test_a_server_may_send_large_frames(rpc_loop: RpcLoop, tmp_path: Path) -> None:
    path, sizes = tmp_path / "large.sock", list[int]()
    socket = trio.socket.socket(trio.socket.AF_UNIX)
    await socket.bind(str(path))
    socket.listen()
    async with trio.SocketListener(socket) as listener, trio.open_nursery() as nursery:
        nursery.start_soon(answer_in_large_frames, listener, sizes)
        channel = Channel(str(path))
        version = await channel.unary(cri.RuntimeServiceStub.version, cri.VersionRequest())
        nursery.cancel_scope.cancel()
    assert version.version == "x" * ANSWER_BYTES
    assert max(sizes) == LARGEST_FRAME


def test_the_text_of_a_data_frame_does_not_hold_its_bytes() -> None:
    frame = DataFrame(1, b"secret")
    frame.body_len = 6
    assert repr(frame).endswith("6 bytes")
