"""From settings to a running agent and to its end: what is checked first, and what ends it.

SIGTERM, SIGINT and, if wanted, somebody who wants the lock file cancel the root nursery: the
agent ends, calls whose outcome must be known are finished, and the containers run on. SIGHUP has
the settings read anew (`live_settings.py`), also one that came before they were read. What the
agent cannot start without is one line on stderr and exit code 1.
"""

import faulthandler
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

from trio_kubelet.agent.live_settings import reload_on_hangup
from trio_kubelet.agent.start import Agent
from trio_kubelet.agent.traces import Traces, traced_requests
from trio_kubelet.config.settings import Examination, Settings
from trio_kubelet.errors import StartError
from trio_kubelet.k8s.client import ApiClients, ClientLimits, RateLimit, open_api_clients
from trio_kubelet.k8s.client.kubeconfig import KubeconfigError
from trio_kubelet.kernel.file_lock import FileLock, hold_lock
from trio_kubelet.kernel.systemd import ServiceNotifier
from trio_kubelet.node import node_name
from trio_kubelet.node.host import Host, find_cgroups, open_host
from trio_kubelet.rpc import open_rpc_loop
from trio_kubelet.tasks.clock import Clock, SystemClock
from trio_kubelet.tasks.lookups import HostLookups
from trio_kubelet.telemetry.log import tell_failure
from trio_kubelet.volumes.safe_open import has_openat2

if TYPE_CHECKING:
    from trio_kubelet.node.client_certificate import RotatedClientCertificate

log = structlog.get_logger("agent")

SHUTDOWN_SECONDS = 10
NO_LIMIT = -1.0
"""eventRecordQPS 0 means that, a rate limit of 0 does not."""
INTERRUPTED = 128 + signal.SIGINT


def run_agent(settings: Settings, read_anew: Callable[[], Examination]) -> int:
    """Run the agent until it is told to stop; returns the exit code. Blocks.

    `read_anew` reads the settings once more, blocking; SIGHUP asks for that.
    """
    faulthandler.enable()  # The watchdog's SIGABRT leaves in the log where it hung.
    try:
        trio.run(_run, settings, read_anew)
    except (KeyboardInterrupt, BaseExceptionGroup, StartError) as error:
        if _is_interrupt(error):
            return INTERRUPTED
        start_error, others = _start_error(error)
        if others is not None or start_error is None:
            tell_failure(f"trio-kubelet: ended by a bug: {error!r}")
            raise
        tell_failure(f"trio-kubelet: {start_error}")
        return 1
    finally:
        signal.alarm(0)
    return 0


def _is_interrupt(error: BaseException) -> bool:
    """True if Control-C was pressed once more while the agent was ending."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _start_error(error: BaseException) -> tuple[StartError | None, BaseException | None]:
    """The first StartError in an exception, and what there is beside StartErrors."""
    if isinstance(error, StartError):
        return error, None
    if not isinstance(error, BaseExceptionGroup):
        return None, error
    ours, others = error.split(StartError)
    first: BaseException | None = ours
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return (first if isinstance(first, StartError) else None), others


async def _run(settings: Settings, read_anew: Callable[[], Examination]) -> None:
    _check_openat2()
    trio.socket.set_custom_hostname_resolver(HostLookups())
    clock = SystemClock()
    if settings.options.hollow:
        # Here, because no other agent needs it.
        from trio_kubelet.hollow.host import open_hollow_host

        host_opened = open_hollow_host(settings, clock)
    else:
        host_opened = open_host(settings, find_cgroups(settings))
    notifier = ServiceNotifier()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        await nursery.start(_end_on_signal, nursery.cancel_scope, notifier)
        hangups = stack.enter_context(_hangups())
        if settings.options.lock_file:
            lock = await _locked(Path(settings.options.lock_file), stack, notifier)
            if settings.options.exit_on_lock_contention:
                nursery.start_soon(_end_on_contention, lock, nursery.cancel_scope, notifier)
        await stack.enter_async_context(open_rpc_loop())
        host = await stack.enter_async_context(host_opened)
        agent = await _make_agent(settings, clock, host, notifier)
        nursery.start_soon(reload_on_hangup, hangups, read_anew, agent.parts.live, notifier)
        await _run_agent(agent)


@contextmanager
def _hangups() -> Iterator[AsyncIterator[int]]:
    """All SIGHUPs since the program was called, which has held them back; the end ignores them."""
    # Those that nobody has taken are raised again when the receiver closes.
    signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        with trio.open_signal_receiver(signal.SIGHUP) as hangups:
            # Before there are threads and child processes, which would hold them back, too.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            yield hangups
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


async def _run_agent(agent: Agent) -> None:
    """Run it with its sockets for plugins, which have gone before the loop that serves them.

    Traces are sent meanwhile, those of its end last.
    """
    traces = agent.parts.traces
    async with traces.sent() if traces else nullcontext(), trio.open_nursery() as nursery:
        nursery.start_soon(agent.serve_plugins)
        await agent.run()
        nursery.cancel_scope.cancel()


async def _make_agent(
    settings: Settings, clock: Clock, host: Host, notifier: ServiceNotifier
) -> Agent:
    """The agent, with an API server if the settings name one. Raises StartError."""
    if not _has_api_server(settings):
        return Agent(settings, clock, host, notifier)
    certificate = await _client_certificate(settings, clock)
    open_clients = partial(_clients, settings, clock, certificate)
    agent = Agent(settings, clock, host, notifier, open_clients)
    if certificate is not None:
        agent.monitoring.watch_client_certificate(certificate.rotation)
    return agent


def _check_openat2() -> None:
    """Refuse a kernel on which volumes cannot be handled safely. Raises StartError."""
    if not has_openat2():
        raise StartError(
            "the system call openat2 is needed to handle volumes safely, and the kernel "
            f"({os.uname().release}) does not have it or a seccomp filter denies it; Linux 5.6 or "
            "newer is needed"
        )


async def _locked(path: Path, stack: AsyncExitStack, notifier: ServiceNotifier) -> FileLock:
    """Wait for the lock and hold it as long as the stack. Raises StartError."""

    def say() -> None:
        log.warning("waiting for the lock file; another agent holds it", path=str(path))
        notifier.status(f"waiting for the lock file {path}; another agent holds it")

    try:
        return await stack.enter_async_context(hold_lock(path, say))
    except OSError as error:
        raise StartError(f"--lock-file: {path}: {error.strerror}; choose another path") from error


async def _end_on_contention(
    lock: FileLock, scope: trio.CancelScope, notifier: ServiceNotifier
) -> None:
    """End the agent as soon as another one wants the lock (flag --exit-on-lock-contention)."""
    await lock.wanted()
    _end("somebody else wants the lock file", scope, notifier)


async def _end_on_signal(
    scope: trio.CancelScope,
    notifier: ServiceNotifier,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """SIGTERM and SIGINT end the agent at once; a second one kills it."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            _end(signal.Signals(number).name, scope, notifier)


def _end(why: str, scope: trio.CancelScope, notifier: ServiceNotifier) -> None:
    """Cancel everything. A runtime that hangs holds the end up for ten seconds, not longer."""
    log.info("shutting down, containers keep running", why=why)
    notifier.stopping()
    signal.signal(signal.SIGALRM, lambda *_: _give_up_waiting())
    signal.alarm(SHUTDOWN_SECONDS)
    scope.cancel()


def _give_up_waiting() -> None:
    tell_failure("trio-kubelet: ended without waiting for the runtime any longer")
    os._exit(0)


def _has_api_server(settings: Settings) -> bool:
    options = settings.options
    return bool(options.kubeconfig or options.bootstrap_kubeconfig)


async def _client_certificate(
    settings: Settings, clock: Clock
) -> "RotatedClientCertificate | None":
    """The certificate that is rotated, if one is (`rotateCertificates`). Raises StartError."""
    options = settings.options
    if not options.kubeconfig:
        raise StartError(
            "--bootstrap-kubeconfig needs --kubeconfig, the file to write the node's own "
            "credentials to"
        )
    if not settings.configuration.rotate_certificates:
        return None
    # Here, because what it takes is large, and other nodes need none of it.
    from trio_kubelet.node.client_certificate import ClientFiles, open_client_certificate

    bootstrap = options.bootstrap_kubeconfig
    files = ClientFiles(
        kubeconfig=Path(options.kubeconfig),
        bootstrap=Path(bootstrap) if bootstrap else None,
        cert_dir=Path(options.cert_dir),
    )
    return await open_client_certificate(files, node_name(settings), clock)


@asynccontextmanager
async def _clients(
    settings: Settings,
    clock: Clock,
    certificate: "RotatedClientCertificate | None",
    traces: Traces | None,
) -> AsyncIterator[ApiClients]:
    """The way to the API server; credentials are asked for where there are none. Raises StartError.

    Where certificates are not rotated, a bootstrap may take until somebody approves the node's
    request; where they are, the first one is got while the agent runs.
    """
    options, configuration = settings.options, settings.configuration
    if certificate is None and options.bootstrap_kubeconfig:
        await _bootstrap(settings, clock)
    try:
        clients = open_api_clients(
            Path(options.kubeconfig) if certificate is None else certificate.config,
            limits=ClientLimits(
                rate=RateLimit(configuration.kube_api_qps, configuration.kube_api_burst),
                events=RateLimit(
                    configuration.event_record_qps or NO_LIMIT, configuration.event_burst
                ),
                heartbeat_seconds=min(
                    configuration.node_status_update_frequency.total_seconds(),
                    configuration.node_lease_duration_seconds,
                ),
            ),
            clock=clock,
            rotated=None if certificate is None else certificate.pem,
            wrap=partial(traced_requests, traces=traces),
        )
        async with clients as opened, trio.open_nursery() as nursery:
            log.info("using API server", server=opened.server)
            if certificate is not None:
                nursery.start_soon(certificate.run, opened)
            yield opened
            nursery.cancel_scope.cancel()
    except KubeconfigError as error:
        raise StartError(str(error)) from error


async def _bootstrap(settings: Settings, clock: Clock) -> None:
    """Get the node its first certificate, if it has none that is good. Raises StartError."""
    # Here, because what it takes is large, and a node without --bootstrap-kubeconfig needs none.
    from trio_kubelet.node.bootstrap import BootstrapError, bootstrap

    options = settings.options
    try:
        await bootstrap(
            kubeconfig=Path(options.kubeconfig),
            bootstrap_kubeconfig=Path(options.bootstrap_kubeconfig),
            cert_dir=Path(options.cert_dir),
            node_name=node_name(settings),
            clock=clock,
        )
    except BootstrapError as error:
        raise StartError(str(error)) from error
