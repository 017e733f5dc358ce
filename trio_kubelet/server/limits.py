"""The shares of the server that clients may use, and the times that it waits for them."""

from attrs import frozen


@frozen(kw_only=True)
class Limits:
    """The limits of one `serve_http`; times in seconds."""

    connections: int = 64
    connections_of_a_peer: int = 48
    """Of one address, or one user on a Unix socket."""
    lasting_requests: int = 32
    """Those that last as long as their clients like: followed logs, commands, forwarded ports."""
    head_bytes: int = 32 * 1024
    """The request line and all headers."""
    headers: int = 100
    head_seconds: float = 10.0
    """From a connection to its first byte, and from the first byte of a request to its body."""
    idle_seconds: float = 90.0
    """Between two requests; no less than the Go kubelet's, which its clients count on."""
    progress_seconds: float = 30.0
    """For the next bytes of a body."""
    take_seconds: float = 30.0
    """For a client to take the next 64 KiB of a response."""
    unsent_bytes: int = 24 << 20
    """Of answers that clients have not taken yet, all together, with their copies. One answer of
    each peer and namespace may be longer."""
    close_seconds: float = 2.0
    """For requests in flight when the server ends."""
