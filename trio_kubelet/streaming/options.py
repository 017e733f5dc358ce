"""What a request wants of a container, read off its query; pure."""

from attrs import frozen

from trio_kubelet.server.messages import Headers, RequestError, Values

MAX_PORT = 65535


@frozen(kw_only=True)
class Streams:
    """Which streams a client wants to be connected with."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


def wanted_streams(query: Values) -> Streams:
    """Raises RequestError (400). A terminal has no stream of its own for errors."""
    tty, stdin, stdout, stderr = (
        query.first(name) == "1" for name in ("tty", "input", "output", "error")
    )
    if not (stdin or stdout or stderr):
        raise RequestError(400, "you must specify at least 1 of stdin, stdout, stderr")
    return Streams(stdin=stdin, stdout=stdout, stderr=stderr and not tty, tty=tty)


def wanted_ports(query: Values, headers: Headers) -> tuple[int, ...]:
    """The ports of a port-forward over WebSocket; over SPDY they come later. RequestError (400)."""
    if headers.first("upgrade").lower() != "websocket":
        return ()
    ports = [text for texts in query.all("port") for text in texts.split(",")]
    if not ports:
        raise RequestError(400, 'query parameter "port" is required')
    found = []
    for text in ports:
        digits = text.lstrip("0")
        if not (digits.isascii() and digits.isdecimal() and int(digits[:6]) <= MAX_PORT):
            raise RequestError(400, f'invalid port "{text}"')
        found.append(int(digits))
    return tuple(found)
