"""Making the sandbox of a pod: its log folder, its DNS settings, its runtime handler, the call."""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

import structlog
import trio
from attrs import frozen

from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import Pod
from trio_kubelet.rpc import RpcError, rpc_words
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.dns import DnsWarning, NodeDns, dns_config
from trio_kubelet.runtime.config.labels import MANY_LABELS, left_out_of_sandbox
from trio_kubelet.runtime.config.names import pod_full_name
from trio_kubelet.runtime.config.sandbox_config import sandbox_config
from trio_kubelet.runtime.config.security import IdMapping, SecurityFacts
from trio_kubelet.runtime.handlers import RuntimeFeatures
from trio_kubelet.runtime.lifecycle.plan import NewSandbox
from trio_kubelet.runtime.lifecycle.start_limiter import StartLimiter, StartStage
from trio_kubelet.runtime.node_facts import NodeFacts, by_family
from trio_kubelet.runtime.observed import ObservedSandbox
from trio_kubelet.runtime.pod_files import make_pod_log_directory
from trio_kubelet.runtime.user_namespaces import check_support
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.telemetry import EventRecorder, EventType, Journal

log = structlog.get_logger("runtime")

T = TypeVar("T")

ANNOTATIONS_LEFT_OUT = "AnnotationsLeftOut"


@frozen(kw_only=True)
class ReadySandbox:
    """The sandbox that containers go into. `ips` are empty on the host's network.

    `runtime_handler` is the one that it was made with, empty for the runtime's default.
    """

    id: str
    config: cri.PodSandboxConfig
    ips: tuple[str, ...]
    runtime_handler: str = ""


class SandboxError(Exception):
    """There is no sandbox to work in. `reason` and text are those of the pod's event."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @classmethod
    def not_made(cls, why: str) -> "SandboxError":
        """The runtime, or what it is asked with, allows none."""
        return cls("FailedCreatePodSandBox", f"Failed to create pod sandbox: {why}")

    @classmethod
    def not_seen(cls, why: str) -> "SandboxError":
        """It was made, and the runtime does not tell its state and addresses."""
        return cls("FailedPodSandBoxStatus", f"Unable to get pod sandbox status: {why}")


async def default_handler(_pod: Pod) -> str:
    """Return the runtime's own default: where there are no runtime classes."""
    return ""


async def no_user_namespace(_pod: Pod) -> None:
    """Return no range of ids: a pod that asks for one is not made."""
    return


@frozen(kw_only=True)
class SandboxCreator:
    """Makes the sandboxes of all pods. Holds no state of any of them.

    `read_dns` reads what the node says of DNS, and blocks. `runtime_handler` names the handler
    for a pod's sandbox, or raises ConfigError. `runtime_features` returns what the runtime said
    last of its handlers. `user_namespace` returns the ids of a pod, or raises ConfigError.
    """

    client: RuntimeClient
    recorder: EventRecorder
    journal: Journal
    node: NodeFacts
    read_dns: Callable[[], NodeDns]
    start_limiter: StartLimiter
    files: FairLimiter
    runtime_handler: Callable[[Pod], Awaitable[str]] = default_handler
    runtime_features: Callable[[], RuntimeFeatures] = RuntimeFeatures
    user_namespace: Callable[[Pod], Awaitable[IdMapping | None]] = no_user_namespace

    async def config(self, pod: Pod, sandbox: NewSandbox | ObservedSandbox) -> cri.PodSandboxConfig:
        """Make the config that the sandbox is, or was, made with, and the folder of its logs.

        Raises SandboxError.
        """
        try:
            prepare = partial(self._prepare, pod)
            node_dns = await self.files.share_of(pod.metadata).run_sync(prepare)
            dns, warnings = dns_config(pod, node_dns)
            security = SecurityFacts(user_namespace=await self.user_namespace(pod))
            make = partial(
                sandbox_config, pod, self.node, attempt=sandbox.attempt, dns=dns, security=security
            )
            config = await self._made(pod, make)
        except (ConfigError, OSError) as error:
            raise SandboxError.not_made(str(error)) from error
        if isinstance(sandbox, NewSandbox):
            left_out = await self._made(pod, partial(left_out_of_sandbox, pod))
            self._warn(pod, warnings, left_out)
        return config

    async def ensure(
        self, pod: Pod, sandbox: NewSandbox | ObservedSandbox, config: cri.PodSandboxConfig
    ) -> ReadySandbox:
        """Return the sandbox to work in; a new one is made. Raises SandboxError.

        Cancelled, the call in flight may still make one.
        """
        if isinstance(sandbox, NewSandbox):
            return await self._create(pod, config)
        return ReadySandbox(
            id=sandbox.id,
            config=config,
            ips=by_family(sandbox.ips, self.node.host_ips),
            runtime_handler=sandbox.runtime_handler,
        )

    def failed(self, pod: Pod, error: SandboxError) -> None:
        """Tell of a pod that has no sandbox to work in."""
        log.warning("sandbox creation failed", pod=pod_full_name(pod), error=str(error))
        self.recorder.pod(pod, EventType.WARNING, error.reason, str(error))

    async def _made(self, pod: Pod, make: Callable[[], T]) -> T:
        """The labels and annotations of a sandbox; made in a thread, if they are many."""
        if len(pod.metadata.labels) + len(pod.metadata.annotations) > MANY_LABELS:
            return await self.files.share_of(pod.metadata).run_sync(make)
        return make()

    def _warn(self, pod: Pod, warnings: Iterable[DnsWarning], left_out: str) -> None:
        """Tell of what a new sandbox will not have of what its pod asks for."""
        for warning in warnings:
            if warning.for_node:
                self.recorder.node(
                    EventType.WARNING, warning.reason, warning.message, caused_by_pod=True
                )
            else:
                self.recorder.pod(pod, EventType.WARNING, warning.reason, warning.message)
        if left_out:
            self.recorder.pod(pod, EventType.WARNING, ANNOTATIONS_LEFT_OUT, left_out)

    def _prepare(self, pod: Pod) -> NodeDns:
        """Make the folder of the pod's logs, and read what may have changed since. Blocks."""
        make_pod_log_directory(pod, self.node)
        return self.read_dns()

    async def _create(self, pod: Pod, config: cri.PodSandboxConfig) -> ReadySandbox:
        try:
            handler = await self.runtime_handler(pod)
            check_support(pod, self.runtime_features(), handler)
            async with self.start_limiter.slot(StartStage.SANDBOX, pod):
                began = trio.current_time()
                sandbox_id = await self.client.run_pod_sandbox(config, handler)
        except ConfigError as error:
            raise SandboxError.not_made(error.message) from error
        except RpcError as error:
            raise SandboxError.not_made(rpc_words(error.code, error.message)) from error
        try:
            response = await self.client.pod_sandbox_status(sandbox_id)
        except RpcError as error:
            raise SandboxError.not_seen(rpc_words(error.code, error.message)) from error
        self.journal.note(
            "sandbox",
            pod.metadata.key,
            "SandboxCreated",
            sandbox_id,
            duration_seconds=trio.current_time() - began,
        )
        network = response.status.network
        ips = (network.ip, *(extra.ip for extra in network.additional_ips))
        return ReadySandbox(
            id=sandbox_id,
            config=config,
            ips=by_family(ips, self.node.host_ips),
            runtime_handler=handler,
        )
