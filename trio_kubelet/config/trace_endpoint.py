"""The collector of traces that `tracing.endpoint` names, in the grammar of gRPC for Go."""

DEFAULT_ENDPOINT = "localhost:4317"
DEFAULT_PORT = 443
"""gRPC's, for an endpoint that has none."""
UNIX_PATH_MAX = 107


def trace_endpoint(endpoint: str | None) -> str | tuple[str, int]:
    """Read an endpoint: `unix:///path`, or a host and its port. Raises ValueError for others.

    An endpoint is `HOST:PORT`, `dns:///HOST:PORT`, `unix:PATH` or `unix:///PATH`.
    """
    endpoint = endpoint or DEFAULT_ENDPOINT
    scheme, _, rest = endpoint.partition(":")
    if scheme == "unix":
        path = rest.removeprefix("//")
        if not path.startswith("/") or path.endswith("/") or "\0" in path:
            raise ValueError("a unix socket needs an absolute path")
        if len(path.encode()) > UNIX_PATH_MAX:
            raise ValueError(f"the path of a unix socket has more than {UNIX_PATH_MAX} bytes")
        return f"unix://{path}"
    if scheme == "unix-abstract":
        raise ValueError("abstract unix sockets are not spoken to")
    target = endpoint
    if rest.startswith("//") or scheme == "dns":
        _, _, target = rest.removeprefix("//").rpartition("/")
    host, colon, port = target.rpartition(":")
    if not colon or target.endswith("]"):
        host, port = target, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 1 << 16
    if not host or not is_port:
        raise ValueError("it has no host, or no port from 1 to 65535")
    return host, int(port)
