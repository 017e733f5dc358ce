"""All that pods here refer to, behind one object.

A pod is registered when it comes and with every newer version of its spec; from then on what it
refers to is kept at hand, counted by pod, until it is unregistered. Whoever needs an object asks
for it and waits for the first answer; a pod whose objects changed is told by `on_change`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from functools import partial
from typing import Generic

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.k8s import (
    AllocatedClaim,
    ClusterTrustBundleProjection,
    ConfigMap,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Secret,
    ServiceAccount,
    VolumeAttachment,
)
from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.k8s.kinds import CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, Kind
from trio_kubelet.references.cached import CachedObjects, ask
from trio_kubelet.references.claims import Claims
from trio_kubelet.references.object_references import (
    ROOT_CERTIFICATES,
    ObjectError,
    ObjectNotFoundError,
    ObjectReferences,
    T,
    environment_config_maps,
    environment_secrets,
    not_registered,
    object_references,
    pull_secrets,
)
from trio_kubelet.references.services import ServiceCache
from trio_kubelet.references.tokens import Tokens
from trio_kubelet.references.trust_bundles import TrustBundles
from trio_kubelet.references.watched import WatchedObjects
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.concurrency import both, run_for_each
from trio_kubelet.tasks.fair_limiter import FairLimiter

log = structlog.get_logger("references")


Objects = WatchedObjects[T] | CachedObjects[T]
"""The objects of one kind that pods here use."""


class Strategy(StrEnum):
    """`configMapAndSecretChangeDetectionStrategy`."""

    WATCH = "Watch"
    CACHE = "Cache"
    GET = "Get"


CACHE_SECONDS = 60.0
"""The time that an answer serves with the strategy Cache."""

LOOKUPS = 32
LOOKUPS_OF_NAMESPACE = 8
"""Questions to the API server at once. It answers so many a second (kubeAPIQPS), first come, first
served: behind the thousand objects of one pod all others would wait, their statuses, too."""

FETCHED_AT_ONCE = 32
"""Objects of one kind that one pod's containers wait for at a time."""

NAMES_IN_A_TURN = 1000
"""Names of one pod that are gone through before others have their turn: a few milliseconds."""

_NOTHING_REGISTERED = (None, ObjectReferences())


@frozen(kw_only=True)
class EnvironmentData:
    """The data that the variables of a pod's containers are made of.

    `problems` are the messages for objects that could not be had, by kind and name; objects that
    do not exist are simply not there. `services` are variables already.
    """

    config_maps: Mapping[str, Mapping[str, str]] = field(factory=dict)
    secrets: Mapping[str, Mapping[str, bytes]] = field(factory=dict)
    problems: Mapping[tuple[str, str], str] = field(factory=dict)
    services: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class PullSecrets:
    """The secrets to pull a pod's images with, and the names of those that cannot be had."""

    secrets: tuple[Secret, ...] = ()
    missing: tuple[str, ...] = ()


class References:
    """Keeps the objects at hand. Its methods are for the volumes, variables and pulls of pods.

    `on_change` is called with the UID of a pod when something that it refers to has changed; it
    must neither block nor raise.
    """

    def __init__(
        self,
        api: Api,
        *,
        clock: Clock,
        strategy: str = Strategy.WATCH,
        trust_bundles: bool = False,
    ) -> None:
        self.on_change: Callbacks[[str]] = Callbacks()
        on_change = self.on_change.call
        lookups = FairLimiter(LOOKUPS, LOOKUPS_OF_NAMESPACE)
        make = partial(_objects, api, Strategy(strategy), on_change, lookups)
        self._config_maps: Objects[ConfigMap] = make(CONFIG_MAPS, frozenset({ROOT_CERTIFICATES}))
        self._secrets: Objects[Secret] = make(SECRETS, frozenset())
        self._tokens = Tokens(api, clock, on_change, lookups)
        self._trust_bundles = TrustBundles(api, on_change, enabled=trust_bundles)
        self._services = ServiceCache(api)
        self._claims = Claims(api, lookups)
        self._api = api
        self._lookups = lookups
        self._registered: dict[str, tuple[Pod, ObjectReferences]] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep everything up to date, for ever."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._config_maps.run)
            await nursery.start(self._secrets.run)
            await nursery.start(self._tokens.run)
            nursery.start_soon(self._trust_bundles.run)
            nursery.start_soon(self._services.run)
            task_status.started()

    def register(self, pod: Pod) -> None:
        """A pod is here, or has a newer version. Calling it again costs nothing."""
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        known, before = self._registered.get(uid, (None, ObjectReferences()))
        if known is pod:
            return
        after = object_references(pod)
        self._registered[uid] = (pod, after)
        if after != before:
            _exchange(self._config_maps, namespace, uid, before.config_maps, after.config_maps)
            _exchange(self._secrets, namespace, uid, before.secrets, after.secrets)
        if after.trust_bundles:
            self._trust_bundles.use(uid)

    def unregister(self, uid: str) -> None:
        """A pod needs nothing any more; unknown ones are fine."""
        pod, before = self._registered.pop(uid, (None, ObjectReferences()))
        if pod is None:
            return
        namespace = pod.metadata.namespace
        _exchange(self._config_maps, namespace, uid, before.config_maps, frozenset())
        _exchange(self._secrets, namespace, uid, before.secrets, frozenset())
        self._trust_bundles.release(uid)
        self._tokens.forget(uid)

    async def config_map(self, namespace: str, name: str) -> ConfigMap:
        """Return a config map that a registered pod refers to. Raises ObjectError."""
        return await self._config_maps.get((namespace, name))

    async def secret(self, namespace: str, name: str) -> Secret:
        """Return a secret that a registered pod refers to. Raises ObjectError."""
        return await self._secrets.get((namespace, name))

    async def service_account(self, namespace: str, name: str) -> ServiceAccount:
        """Return a service account as the API server has it now. Raises ObjectError."""
        try:
            async with self._lookups.share(namespace):
                return await ask(lambda: self._api.get(SERVICE_ACCOUNTS, name, namespace))
        except ApiError as error:
            raise ObjectError(f"failed to get service account: {error.message}") from error

    async def token(self, pod: Pod, audience: str, expiration_seconds: int | None) -> str:
        """Return a valid token of a pod's service account. Raises ObjectError."""
        return await self._tokens.get(pod, audience, expiration_seconds)

    async def account_token(self, pod: Pod, audience: str, account_uid: str) -> str:
        """Return a valid token of a pod's service account, and of no later one of its name.

        Raises ObjectError.
        """
        return await self._tokens.get(pod, audience, None, service_account_uid=account_uid)

    async def trust_anchors(self, pod: Pod, projection: ClusterTrustBundleProjection) -> bytes:
        """Return the certificates of a pod's projection in PEM. Raises ObjectError."""
        return await self._trust_bundles.anchors(pod.metadata.namespace, projection)

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim:
        """Return a claim as the API server has it now. Raises ObjectError."""
        return await self._claims.claim(namespace, name)

    async def report_claim(
        self, claim: PersistentVolumeClaim, status: Mapping[str, object]
    ) -> PersistentVolumeClaim:
        """Change fields of a claim's status; see `Claims.report`. Raises ObjectError."""
        return await self._claims.report(claim, status)

    async def persistent_volume(self, namespace: str, name: str) -> PersistentVolume:
        """Return a volume that a pod of a namespace claims. Raises ObjectError."""
        return await self._claims.volume(namespace, name)

    async def volume_secret(self, namespace: str, name: str) -> Secret:
        """Return a secret that a persistent volume names. Raises ObjectError."""
        return await self._claims.secret(namespace, name)

    async def attachment(self, name: str) -> VolumeAttachment:
        """Return the attachment of a volume to this node. Raises ObjectError."""
        return await self._claims.attachment(name)

    async def resource_claim(self, namespace: str, name: str) -> AllocatedClaim:
        """Return a claim of a pod on devices. Raises ObjectError."""
        return await self._claims.resource_claim(namespace, name)

    async def environment(self, pod: Pod, *, is_static: bool = False) -> EnvironmentData:
        """Return what the variables of a registered pod are made of; waits for first answers.

        A static pod does not wait for the services. Raises ObjectError where these do not come.
        """
        _, registered = self._registered.get(pod.metadata.uid, _NOTHING_REGISTERED)
        config_maps = _FetchedObjects(self._config_maps, pod, registered.config_maps)
        secrets = _FetchedObjects(self._secrets, pod, registered.secrets)
        await both(
            partial(config_maps.fetch_or_refuse, environment_config_maps(pod)),
            partial(secrets.fetch_or_refuse, environment_secrets(pod)),
        )
        services = (
            self._services.known_variables(pod)
            if is_static
            else await self._services.variables(pod)
        )
        return EnvironmentData(
            config_maps={name: each.data for name, each in config_maps.found.items()},
            secrets={name: each.data for name, each in secrets.found.items()},
            problems={**config_maps.problems, **secrets.problems},
            services=services,
        )

    async def pull_secrets(self, pod: Pod) -> PullSecrets:
        """Return the secrets to pull a registered pod's images with; waits for first answers."""
        _, registered = self._registered.get(pod.metadata.uid, _NOTHING_REGISTERED)
        names = pull_secrets(pod)
        secrets = _FetchedObjects(self._secrets, pod, registered.secrets)
        await secrets.fetch(names)
        return PullSecrets(
            secrets=tuple(secrets.found[name] for name in names if name in secrets.found),
            missing=tuple(name for name in names if name not in secrets.found),
        )


class NoReferences:
    """The references of a node without an API server: pods can refer to nothing."""

    def register(self, pod: Pod) -> None:
        """Nothing is kept."""

    def unregister(self, uid: str) -> None:
        """Nothing was."""

    async def config_map(self, _namespace: str, name: str) -> ConfigMap:
        """Raises ObjectNotFoundError."""
        raise ObjectNotFoundError("configmap", name)

    async def secret(self, _namespace: str, name: str) -> Secret:
        """Raises ObjectNotFoundError."""
        raise ObjectNotFoundError("secret", name)

    async def service_account(self, _namespace: str, _name: str) -> ServiceAccount:
        """Raises ObjectError."""
        raise ObjectError("failed to get service account: there is no API server")

    async def token(self, _pod: Pod, _audience: str, _expiration_seconds: int | None) -> str:
        """Raises ObjectError."""
        raise ObjectError("failed to fetch token: there is no API server")

    async def account_token(self, _pod: Pod, _audience: str, _account_uid: str) -> str:
        """Raises ObjectError."""
        raise ObjectError("failed to fetch token: there is no API server")

    async def trust_anchors(self, _pod: Pod, _projection: ClusterTrustBundleProjection) -> bytes:
        """Raises ObjectError."""
        raise ObjectError("ClusterTrustBundle projection needs an API server")

    async def claim(self, _namespace: str, _name: str) -> PersistentVolumeClaim:
        """Raises ObjectError."""
        raise ObjectError("failed to fetch PVC from API server: there is none")

    async def report_claim(
        self, _claim: PersistentVolumeClaim, _status: Mapping[str, object]
    ) -> PersistentVolumeClaim:
        """Raises ObjectError."""
        raise ObjectError("failed to patch status of PVC: there is no API server")

    async def persistent_volume(self, _namespace: str, name: str) -> PersistentVolume:
        """Raises ObjectError."""
        raise ObjectError(f"failed to fetch PV {name} from API server: there is none")

    async def volume_secret(self, _namespace: str, name: str) -> Secret:
        """Raises ObjectNotFoundError."""
        raise ObjectNotFoundError("secret", name)

    async def attachment(self, name: str) -> VolumeAttachment:
        """Raises ObjectError."""
        raise ObjectError(f"failed to fetch {name} from API server: there is none")

    async def resource_claim(self, namespace: str, name: str) -> AllocatedClaim:
        """Raises ObjectError."""
        raise ObjectError(f"failed to fetch ResourceClaim {namespace}/{name}: no API server")

    async def environment(self, _pod: Pod, *, is_static: bool = False) -> EnvironmentData:  # noqa: ARG002
        """Nothing."""
        return EnvironmentData()

    async def pull_secrets(self, _pod: Pod) -> PullSecrets:
        """None, and none that would be missed."""
        return PullSecrets()


def _objects(
    api: Api,
    strategy: Strategy,
    on_change: Callable[[str], None],
    lookups: FairLimiter,
    kind: Kind[T],
    followed_on: frozenset[str],
) -> Objects[T]:
    if strategy is Strategy.WATCH:
        return WatchedObjects(api, kind, on_change, lookups, followed_on)
    serves_seconds = CACHE_SECONDS if strategy is Strategy.CACHE else 0.0
    return CachedObjects(api, kind, serves_seconds, lookups)


def _exchange(
    objects: Objects[T], namespace: str, uid: str, before: Iterable[str], after: Iterable[str]
) -> None:
    """Use what is new first: an object that stays in use is never forgotten in between."""
    before, after = frozenset(before), frozenset(after)
    for name in sorted(after - before):
        objects.use((namespace, name), uid)
    for name in sorted(before - after):
        objects.release((namespace, name), uid)


@define
class _FetchedObjects(Generic[T]):
    """The objects of one kind that were found of those that a pod refers to, and the problems.

    Only those are asked for that are registered for this pod: others there are by the ten
    thousand. An object that does not exist is neither found nor a problem.
    """

    _objects: Objects[T]
    _pod: Pod
    _registered: frozenset[str]
    found: dict[str, T] = field(init=False, factory=dict)
    problems: dict[tuple[str, str], str] = field(init=False, factory=dict)

    async def fetch(self, names: Collection[str]) -> None:
        """Ask for the objects with these names, each once; waits for first answers."""
        wanted = self._registered.intersection(names)
        await run_for_each(wanted, self._fetch_one, min(len(wanted), FETCHED_AT_ONCE))

    async def fetch_or_refuse(self, names: Collection[str]) -> None:
        """Ask for the objects; each that is not registered is a problem."""
        await self.fetch(names)
        for number, name in enumerate(names):
            if number % NAMES_IN_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            if name not in self._registered:
                error = not_registered((self._pod.metadata.namespace, name))
                self.problems[self._objects.word, name] = str(error)

    async def _fetch_one(self, name: str) -> None:
        try:
            self.found[name] = await self._objects.get((self._pod.metadata.namespace, name))
        except ObjectNotFoundError:
            return
        except ObjectError as error:
            self.problems[self._objects.word, name] = str(error)
