"""Actions on a container: probes that ask how it is, hooks at its start and end."""

from enum import StrEnum

from attrs import frozen

from trio_kubelet.k8s.base import ApiType, Int32, Int64, Mandatory
from trio_kubelet.k8s.intstr import IntOrString

NO_PORT = IntOrString(0)


class URIScheme(StrEnum):
    """The protocol of an HTTP action."""

    HTTP = "HTTP"
    HTTPS = "HTTPS"


@frozen(kw_only=True, repr=False, eq=False)
class ExecAction(ApiType):
    """A command run in the container, without a shell; exit code 0 is success."""

    command: tuple[str, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class HTTPHeader(ApiType):
    """One header of an HTTP action."""

    name: Mandatory[str] = ""
    value: Mandatory[str] = ""


@frozen(kw_only=True, repr=False, eq=False)
class HTTPGetAction(ApiType):
    """An HTTP GET on the pod's IP, or on `host`. The port is a number or the name of one."""

    path: str = ""
    host: str = ""
    http_headers: tuple[HTTPHeader, ...] = ()
    port: Mandatory[IntOrString] = NO_PORT
    scheme: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class TCPSocketAction(ApiType):
    """A TCP connection to the pod's IP, or to `host`."""

    host: str = ""
    port: Mandatory[IntOrString] = NO_PORT


@frozen(kw_only=True, repr=False, eq=False)
class GRPCAction(ApiType):
    """A call of the gRPC health service."""

    port: Mandatory[Int32] = 0
    service: str | None = None


@frozen(kw_only=True, repr=False, eq=False)
class SleepAction(ApiType):
    """A wait."""

    seconds: Mandatory[Int64] = 0


@frozen(kw_only=True, repr=False, eq=False)
class Probe(ApiType):
    """A check that the node repeats. Exactly one of the actions is set.

    Times are in seconds. Absent numbers get the API's defaults in `defaults.py`.
    """

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None

    initial_delay_seconds: Int32 | None = None
    timeout_seconds: Int32 | None = None
    period_seconds: Int32 | None = None
    success_threshold: Int32 | None = None
    failure_threshold: Int32 | None = None
    termination_grace_period_seconds: Int64 | None = None


@frozen(kw_only=True, repr=False, eq=False)
class LifecycleHandler(ApiType):
    """The action of a hook. Exactly one of the actions is set."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


@frozen(kw_only=True, repr=False, eq=False)
class Lifecycle(ApiType):
    """Hooks after the start and before the stop of a container, and the signal that stops it."""

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None
    stop_signal: str = ""
