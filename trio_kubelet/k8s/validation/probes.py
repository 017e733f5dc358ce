"""Probes and lifecycle hooks: exactly one action each, and numbers that make sense."""

from collections.abc import Callable, Iterator
from typing import Any

from trio_kubelet.k8s.base import wire_name_of
from trio_kubelet.k8s.container import Container
from trio_kubelet.k8s.errors import (
    FieldError,
    all_invalid,
    forbidden,
    invalid,
    required,
    unsupported,
)
from trio_kubelet.k8s.intstr import IntOrString
from trio_kubelet.k8s.pod import OSName
from trio_kubelet.k8s.probes import (
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    Probe,
    SleepAction,
    TCPSocketAction,
    URIScheme,
)
from trio_kubelet.k8s.validation import formats

_COUNTS = (
    "initial_delay_seconds",
    "timeout_seconds",
    "period_seconds",
    "success_threshold",
    "failure_threshold",
)
_WINDOWS_SIGNALS = {"SIGKILL", "SIGTERM"}
_NUMBERED_SIGNALS = {f"SIGRTMIN+{number}" for number in range(1, 16)} | {
    f"SIGRTMAX-{number}" for number in range(1, 15)
}
_NAMED_SIGNALS = """
    SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGIOT SIGKILL
    SIGPIPE SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMIN SIGSEGV SIGSTKFLT SIGSTOP SIGSYS
    SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU
    SIGXFSZ
"""
_LINUX_SIGNALS = _NUMBERED_SIGNALS | set(_NAMED_SIGNALS.split())


def check_probes_and_hooks(
    container: Container, grace_period: int | None, os_name: str, path: str
) -> Iterator[FieldError]:
    """Check the probes and hooks of a container that may have them."""
    if container.lifecycle is not None:
        yield from _check_lifecycle(container.lifecycle, grace_period, os_name, f"{path}.lifecycle")
    probes = {
        "livenessProbe": container.liveness_probe,
        "readinessProbe": container.readiness_probe,
        "startupProbe": container.startup_probe,
    }
    for name, probe in probes.items():
        if probe is not None:
            yield from _check_probe(probe, f"{path}.{name}", is_readiness=name == "readinessProbe")


def _check_probe(probe: Probe, path: str, is_readiness: bool) -> Iterator[FieldError]:
    yield from _check_one_action(probe, None, path)
    for name in _COUNTS:
        number = getattr(probe, name)
        if number is not None:
            where = f"{path}.{wire_name_of(Probe, name)}"
            yield from all_invalid(where, number, formats.not_negative(number))
    grace = probe.termination_grace_period_seconds
    where = f"{path}.terminationGracePeriodSeconds"
    if is_readiness:
        if grace is not None:
            yield invalid(where, grace, "must not be set for readinessProbes")
        return
    if grace is not None and grace <= 0:
        yield invalid(where, grace, "must be greater than 0")
    if probe.success_threshold not in (None, 1):
        yield invalid(f"{path}.successThreshold", probe.success_threshold, "must be 1")


def _check_lifecycle(
    lifecycle: Lifecycle, grace_period: int | None, os_name: str, path: str
) -> Iterator[FieldError]:
    if lifecycle.post_start is not None:
        yield from _check_one_action(lifecycle.post_start, grace_period, f"{path}.postStart")
    if lifecycle.pre_stop is not None:
        yield from _check_one_action(lifecycle.pre_stop, grace_period, f"{path}.preStop")
    if lifecycle.stop_signal:
        yield from _check_stop_signal(lifecycle.stop_signal, os_name, f"{path}.stopSignal")


def _check_stop_signal(signal: str, os_name: str, path: str) -> Iterator[FieldError]:
    if not os_name:
        yield forbidden(path, "may not be set for containers with empty `spec.os.name`")
        return
    signals = _WINDOWS_SIGNALS if os_name == OSName.WINDOWS else _LINUX_SIGNALS
    if signal not in signals:
        yield unsupported(path, signal, signals)


def _check_one_action(
    handler: Probe | LifecycleHandler, grace_period: int | None, path: str
) -> Iterator[FieldError]:
    found = False
    for name, check in _ACTIONS.items():
        action = getattr(handler, name, None)
        if action is None:
            continue
        where = f"{path}.{wire_name_of(type(handler), name)}"
        if found:
            yield forbidden(where, "may not specify more than 1 handler type")
        else:
            yield from check(action, grace_period, where)
        found = True
    if not found:
        yield required(path, "must specify a handler type")


def _check_exec(action: ExecAction, _: int | None, path: str) -> Iterator[FieldError]:
    if not action.command:
        yield required(f"{path}.command")


def _check_http(action: HTTPGetAction, _: int | None, path: str) -> Iterator[FieldError]:
    if not action.path:
        yield required(f"{path}.path")
    yield from _check_port(action.port, f"{path}.port")
    if action.scheme not in list(URIScheme):
        yield unsupported(f"{path}.scheme", action.scheme, URIScheme)
    for index, header in enumerate(action.http_headers):
        where = f"{path}.httpHeaders[{index}].name"
        yield from all_invalid(where, header.name, formats.header_name(header.name))


def _check_tcp(action: TCPSocketAction, _: int | None, path: str) -> Iterator[FieldError]:
    yield from _check_port(action.port, f"{path}.port")


def _check_grpc(action: GRPCAction, _: int | None, path: str) -> Iterator[FieldError]:
    yield from all_invalid(f"{path}.port", action.port, formats.port_number(action.port))


def _check_sleep(action: SleepAction, grace_period: int | None, path: str) -> Iterator[FieldError]:
    if grace_period is not None and not 0 <= action.seconds <= grace_period:
        detail = (
            f"must be non-negative and less than terminationGracePeriodSeconds ({grace_period})"
        )
        yield invalid(path, action.seconds, detail)


def _check_port(port: IntOrString, path: str) -> Iterator[FieldError]:
    value = port.value
    problems = formats.port_number(value) if isinstance(value, int) else formats.port_name(value)
    yield from all_invalid(path, value, problems)


_ACTIONS: dict[str, Callable[[Any, int | None, str], Iterator[FieldError]]] = {
    "exec": _check_exec,
    "http_get": _check_http,
    "tcp_socket": _check_tcp,
    "grpc": _check_grpc,
    "sleep": _check_sleep,
}
