"""From "this container should run" to a running container: image, config, create, start, hook.

Each step can fail in its own way; the failure becomes the container's waiting reason and an
event, in the words that users of the Go kubelet know, and the next sync tries again.
CreateContainer and StartContainer are shielded: whether they happened must be known.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog
import trio
from attrs import evolve, frozen

from state_machines.container import ContainerRole
from trio_kubelet.devices.allocation import ContainerAllocation
from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import Container, EphemeralContainer, Pod
from trio_kubelet.resource_managers import ResourceManagers
from trio_kubelet.resources.oom_kills import OomKills
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.container_config import (
    ContainerFacts,
    PodInputs,
    container_config,
    image_user,
)
from trio_kubelet.runtime.config.environment import (
    LARGE,
    LARGE_BYTES,
    EnvironmentFacts,
    blocks_or_is_large,
    environment,
)
from trio_kubelet.runtime.config.field_refs import PodAddresses
from trio_kubelet.runtime.config.hostname import etc_hosts, pod_hostname
from trio_kubelet.runtime.config.mounts import (
    MountSources,
    PreparedVolume,
    container_devices,
    container_mounts,
    mounted_sub_paths,
    mounts_etc_hosts,
)
from trio_kubelet.runtime.config.security import SecurityFacts
from trio_kubelet.runtime.garbage.removal import ContainerRemover
from trio_kubelet.runtime.handlers import RuntimeFeatures
from trio_kubelet.runtime.images.container_images import ContainerImages
from trio_kubelet.runtime.inspection import observed_container
from trio_kubelet.runtime.lifecycle.container_stopper import (
    ContainerStopper,
    Stop,
    own_grace_seconds,
)
from trio_kubelet.runtime.lifecycle.cpuset_reconciler import CpusetReconciler
from trio_kubelet.runtime.lifecycle.hooks import HookError, Hooks
from trio_kubelet.runtime.lifecycle.plan import StartContainer
from trio_kubelet.runtime.lifecycle.sandbox_creator import ReadySandbox
from trio_kubelet.runtime.lifecycle.start_limiter import StartLimiter, StartStage
from trio_kubelet.runtime.node_facts import NodeFacts
from trio_kubelet.runtime.observed import ObservedPod, ObservedState
from trio_kubelet.runtime.pod_files import (
    ContainerFiles,
    link_container_log,
    make_container_files,
)
from trio_kubelet.runtime.user_namespaces import mapping_of
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.telemetry import EventRecorder, EventType

log = structlog.get_logger("runtime")


@frozen(kw_only=True)
class StartContext:
    """The things that are the same for all containers of a pod that one plan starts."""

    pod: Pod
    sandbox: ReadySandbox
    inputs: PodInputs
    observed: ObservedPod


BindSubPath = Callable[[Pod, Container, int, PreparedVolume, str], Awaitable[str]]
"""Binds a sub-path of a volume where nobody can exchange it, following no link out of the volume.

The number is the position of the mount in the container's volumeMounts. Returns the path on the
node. Raises ConfigError.
"""


GetAllocation = Callable[[Pod, Container], Awaitable[ContainerAllocation]]
"""Returns the devices of a container, ready to be used. Raises ConfigError."""


@frozen
class ContainerStartError(Exception):
    """A container could not be started: its waiting `reason` and `message`."""

    reason: str
    message: str


@frozen(kw_only=True)
class ContainerStarter:
    """Starts containers of all pods. Holds no state of any of them.

    `runtime_features` returns what the runtime said last of its handlers, `allocation` gets ready
    what a container that starts was allocated.
    """

    _client: RuntimeClient
    _stopper: ContainerStopper
    _hooks: Hooks
    _remover: ContainerRemover
    _bind_sub_path: BindSubPath
    _recorder: EventRecorder
    _node: NodeFacts
    _start_limiter: StartLimiter
    _files: FairLimiter
    _runtime_features: Callable[[], RuntimeFeatures]
    _read_host_file: Callable[[], str]
    _managers: ResourceManagers
    _cpusets: CpusetReconciler
    _allocation: GetAllocation
    _oom_kills: OomKills | None = None

    async def remove_unstarted_predecessor(
        self, order: StartContainer, observed: ObservedPod
    ) -> None:
        """Remove an instance that never started, so that the new one is no restart.

        Raises ContainerStartError if that is not possible now: a start that was cut off may go on
        for a moment, and then the container may run.
        """
        last = order.predecessor
        if last is None or last.state is not ObservedState.CREATED:
            return
        try:
            response = await self._client.container_status(last.id)
            present = observed_container(response.status, last.sandbox_id)
            if present.state is ObservedState.CREATED:
                await self._remover.remove_containers(observed, [last])
                return
        except RpcError as error:
            if error.code is Code.NOT_FOUND:
                return
            raise ContainerStartError("ContainerCreating", error.message) from error
        message = "its last start has come to an end after all"
        raise ContainerStartError("ContainerCreating", message)

    async def start(
        self, order: StartContainer, images: ContainerImages, context: StartContext
    ) -> str:
        """Create and start a container whose images are there; its id. Raises ContainerStartError.

        Cancelled before CreateContainer it leaves nothing but files; afterwards the call in
        flight is finished, and the container may be left created or started.
        """
        container_id = await self._create_and_start(order, images, context)
        await self._run_post_start(order.container, container_id, context)
        return container_id

    async def _create_and_start(
        self, order: StartContainer, images: ContainerImages, context: StartContext
    ) -> str:
        pod, container, sandbox = context.pod, order.container, context.sandbox
        variables, sub_paths = await self._bind_sub_paths(container, context)
        own = _OwnParts(
            variables=variables,
            sub_paths=sub_paths,
            allocation=await self._allocated(pod, container),
        )
        async with self._start_limiter.slot(StartStage.CONTAINER, pod):
            config = await self._config(order, images, context, own)
            with trio.CancelScope(shield=True):
                container_id = await self._create(pod, container, sandbox, config)
                if self._oom_kills is not None:
                    await self._oom_kills.expect_start(pod.metadata.uid, container_id)
                await self._start(pod, container, container_id)
        await self._link_log(pod, container, container_id, config.metadata.attempt)
        return container_id

    async def _config(
        self,
        order: StartContainer,
        images: ContainerImages,
        context: StartContext,
        own: "_OwnParts",
    ) -> cri.ContainerConfig:
        pod, container, sandbox = context.pod, order.container, context.sandbox
        variables = {**own.allocation.variables, **own.variables}
        try:
            files = await self._make_files(container, context)
            sources = MountSources(
                volumes=_with_image_ids(context.inputs.volumes, images.volumes),
                sub_paths=own.sub_paths,
                pod_ips=sandbox.ips,
                termination_message_file=files.termination_message_file,
                recursive_read_only=(
                    sandbox.runtime_handler in self._runtime_features().recursive_read_only
                ),
            )
            facts = ContainerFacts(
                image_id=images.own.id,
                image_user=image_user(images.own),
                environment=variables,
                mounts=container_mounts(pod, container, self._node, sources),
                devices=container_devices(container, context.inputs.volumes),
                allocation=own.allocation,
                security=SecurityFacts(user_namespace=mapping_of(sandbox.config)),
                placement=self._managers.placement(pod.metadata.uid, container.name),
                target_container_id=_target_container_id(order, context.observed),
            )
            make = partial(
                container_config,
                pod,
                container,
                self._node,
                facts,
                restart_count=_restart_count(order, files),
            )
            words = (*container.command, *container.args)
            is_large = len(variables) > LARGE or len(words) > LARGE
            if is_large or sum(map(len, words)) > LARGE_BYTES:
                return await self._files.share_of(pod.metadata).run_sync(make)
            return make()
        except ConfigError as error:
            raise self._failed(pod, container, error.reason, error.message) from error
        except OSError as error:
            raise self._failed(pod, container, "CreateContainerError", str(error)) from error

    async def _make_files(self, container: Container, context: StartContext) -> ContainerFiles:
        pod, sandbox, observed = context.pod, context.sandbox, context.observed
        has_hosts = mounts_etc_hosts(pod, container, sandbox.ips)
        host_file = await self._host_file(pod) if has_hosts else ""
        needed = {each.message_file for each in observed.instances(container.name)}

        def make() -> ContainerFiles:
            hosts = ""
            if has_hosts:  # A pod may have tens of thousands of aliases.
                hostname = pod_hostname(pod, self._node.configuration.cluster_domain)
                hosts = etc_hosts(pod, sandbox.ips, hostname, host_file)
            return make_container_files(pod, container, self._node, hosts, needed)

        return await self._files.share_of(pod.metadata).run_sync(make)

    async def _host_file(self, pod: Pod) -> str:
        """The node's hosts file as it is now, for who needs it. Raises ConfigError."""
        if not pod.spec.host_network:
            return ""
        try:
            return await self._files.share_of(pod.metadata).run_sync(self._read_host_file)
        except OSError as error:
            raise ConfigError(f"the node's hosts file cannot be read: {error}") from error

    async def _allocated(self, pod: Pod, container: Container) -> ContainerAllocation:
        """The container's devices; its plugin may hang, so no slot is held meanwhile."""
        try:
            return await self._allocation(pod, container)
        except ConfigError as error:
            raise self._failed(pod, container, error.reason, error.message) from error

    async def _bind_sub_paths(
        self, container: Container, context: StartContext
    ) -> tuple[Mapping[str, str], Mapping[int, str]]:
        """The container's environment, and the sub-paths of volumes that it names.

        A volume may hang, so no slot is held meanwhile.
        """
        pod, inputs = context.pod, context.inputs
        try:
            variables = await self._environment(container, context)
            bound: dict[int, str] = {}
            find = partial(mounted_sub_paths, container, variables)
            if sum(len(mount.sub_path_expr) for mount in container.volume_mounts) > LARGE_BYTES:
                sub_paths = await self._files.share_of(pod.metadata).run_sync(find)
            else:
                sub_paths = find()
            for position, sub_path in sub_paths.items():
                volume = inputs.volumes.get(container.volume_mounts[position].name)
                if volume is None:
                    continue
                if volume.image is not None:
                    bound[position] = sub_path
                    continue
                bound[position] = await self._bind_sub_path(
                    pod, container, position, volume, sub_path
                )
        except ConfigError as error:
            raise self._failed(pod, container, error.reason, error.message) from error
        except OSError as error:
            raise self._failed(pod, container, "CreateContainerError", str(error)) from error
        return variables, bound

    async def _environment(self, container: Container, context: StartContext) -> Mapping[str, str]:
        pod, sandbox, inputs = context.pod, context.sandbox, context.inputs
        addresses = PodAddresses(
            pod_ips=self._node.host_ips if pod.spec.host_network else sandbox.ips,
            host_ips=self._node.host_ips,
        )
        facts = EnvironmentFacts(
            addresses=addresses,
            allocatable=self._node.allocatable(),
            services=inputs.services,
            sources=inputs.sources,
        )
        if not blocks_or_is_large(container, facts):
            return environment(pod, container, facts)
        make = partial(environment, pod, container, facts)
        return await self._files.share_of(pod.metadata).run_sync(make)

    async def _create(
        self, pod: Pod, container: Container, sandbox: ReadySandbox, config: cri.ContainerConfig
    ) -> str:
        try:
            container_id = await self._client.create_container(sandbox.id, config, sandbox.config)
        except RpcError as error:
            reason, message = "CreateContainerError", error.message
            raise self._failed(pod, container, reason, message) from error
        self._cpusets.made(container_id, config.linux.resources.cpuset_cpus)
        self._event(pod, container, "Created", "Container created")
        return container_id

    async def _start(self, pod: Pod, container: Container, container_id: str) -> None:
        try:
            await self._client.start_container(container_id)
        except RpcError as error:
            raise self._failed(pod, container, "RunContainerError", error.message) from error
        self._event(pod, container, "Started", "Container started")

    async def _link_log(
        self, pod: Pod, container: Container, container_id: str, restart_count: int
    ) -> None:
        link = partial(
            link_container_log, pod, container.name, container_id, restart_count, self._node
        )
        try:
            await self._files.share_of(pod.metadata).run_sync(link)
        except OSError as error:
            # The container runs; only collectors that look for the link miss its log.
            log.warning("container log link failed", container=container.name, error=str(error))

    async def _run_post_start(
        self, container: Container, container_id: str, context: StartContext
    ) -> None:
        """Run the postStart hook; a container whose hook fails is stopped.

        The stop takes as long as the pod's grace period, and may be cancelled: the pod ends then.
        """
        if container.lifecycle is None or container.lifecycle.post_start is None:
            return
        pod, hook, sandbox = context.pod, container.lifecycle.post_start, context.sandbox
        ip = self._node.address_of(pod, sandbox.ips)
        try:
            await self._hooks.run(pod, container, container_id, hook, ip)
        except HookError as error:
            reason, message = "FailedPostStartHook", "PostStartHook failed"
            self._event(pod, container, reason, message, EventType.WARNING)
            stop = Stop(
                name=container.name,
                id=container_id,
                pod_ips=sandbox.ips,
                grace_seconds=own_grace_seconds(pod),
                message=reason,
            )
            try:
                await self._stopper.stop_container(pod, stop)
            except RpcError as failure:
                log.warning("container stop failed", container=container.name, error=str(failure))
            raise ContainerStartError("PostStartHookError", error.message) from error

    def _event(
        self,
        pod: Pod,
        container: Container,
        reason: str,
        message: str,
        kind: EventType = EventType.NORMAL,
    ) -> None:
        self._recorder.pod(pod, kind, reason, message, container=container.name)

    def _failed(
        self, pod: Pod, container: Container, reason: str, message: str
    ) -> ContainerStartError:
        self._event(pod, container, "Failed", f"Error: {message}", EventType.WARNING)
        return ContainerStartError(reason, message)


@frozen(kw_only=True)
class _OwnParts:
    """The parts of a container's config that had to be waited for."""

    variables: Mapping[str, str]
    sub_paths: Mapping[int, str]
    allocation: ContainerAllocation


def _restart_count(order: StartContainer, files: ContainerFiles) -> int:
    """One more than the last one's if that has started; without a record of it, the logs tell."""
    last = order.predecessor
    if last is None:
        return files.logged_restarts
    return last.restart_count + (last.state is not ObservedState.CREATED)


def _target_container_id(order: StartContainer, observed: ObservedPod) -> str:
    """The container whose processes an ephemeral container wants to see.

    Raises ConfigError where there is none: processes of its own are not what was asked for.
    """
    container = order.container
    if order.role is not ContainerRole.EPHEMERAL or not isinstance(container, EphemeralContainer):
        return ""
    name = container.target_container_name
    if not name:
        return ""
    target = observed.container(name)
    if target is None:
        raise ConfigError(f"unable to find target container {name}")
    return target.id


def _with_image_ids(
    volumes: Mapping[str, PreparedVolume], ids: Mapping[str, str]
) -> Mapping[str, PreparedVolume]:
    """Volumes of which each that is an image names the one that was looked for, by its id."""
    found = {
        name: evolve(
            volume,
            image=cri.ImageSpec(
                image=ids[name], user_specified_image=volume.image.user_specified_image
            ),
        )
        for name, volume in volumes.items()
        if volume.image is not None and name in ids
    }
    return {**volumes, **found}
