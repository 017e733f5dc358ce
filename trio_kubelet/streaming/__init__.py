"""exec, attach and port-forward: the runtime streams, the node passes the bytes on.

The runtime is asked where it will stream; `backend.py` dials that, asks it to switch protocols as
the client did, and moves bytes both ways. What they mean (SPDY or WebSocket, whichever
version) is between the two ends, but for two protocols that runtimes do not know: those
`translation.py` makes into SPDY.
"""

from trio_kubelet.streaming.pod_streams import PodStreams, stream_routes

__all__ = ["PodStreams", "stream_routes"]
