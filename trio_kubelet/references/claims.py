"""Claims of pods on volumes and devices, and what belongs to the volumes: asked for when needed.

What a claim's status says of its volume's growth at the node is written here, too.

None of it is followed: a pod that has its volume goes on with it, and one that has none asks again.
The Node authorizer lets a node get the claims that its pods name, the volumes bound to these, the
secrets that these name, and the attachments of volumes to the node, and lets it write the status
of the claims.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from attrs import frozen

from trio_kubelet.k8s import (
    AllocatedClaim,
    PersistentVolume,
    PersistentVolumeClaim,
    Secret,
    VolumeAttachment,
)
from trio_kubelet.k8s.client import Api, ApiError, PatchType
from trio_kubelet.k8s.kinds import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    RESOURCE_CLAIMS,
    SECRETS,
    VOLUME_ATTACHMENTS,
)
from trio_kubelet.references.cached import ANSWER_SECONDS, ask
from trio_kubelet.references.object_references import ObjectError
from trio_kubelet.tasks.fair_limiter import ALL_PODS, FairLimiter

T = TypeVar("T")


@frozen
class Claims:
    """The claims, volumes and attachments of the API. `lookups` are shared by namespaces."""

    _api: Api
    _lookups: FairLimiter

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim:
        """Return a claim as it is now. Raises ObjectError."""
        get = partial(self._api.get, PERSISTENT_VOLUME_CLAIMS, name, namespace)
        return await self._ask(namespace, get, "failed to fetch PVC from API server: ")

    async def report(
        self, claim: PersistentVolumeClaim, status: Mapping[str, object]
    ) -> PersistentVolumeClaim:
        """Change fields of a claim's status, unless it has changed since it was fetched.

        None as a value removes a field. Returns the claim as it is then. Raises ObjectError.
        """
        about = claim.metadata
        patch = partial(
            self._api.patch,
            PERSISTENT_VOLUME_CLAIMS,
            about.name,
            about.namespace,
            body={
                "metadata": {"uid": about.uid, "resourceVersion": about.resource_version},
                "status": status,
            },
            type=PatchType.MERGE,
            subresource="status",
        )
        async with self._lookups.share(about.namespace):
            try:
                return await ask(patch)
            except ApiError as error:
                words = f"failed to patch status of PVC {about.key}: {error.message}"
                raise ObjectError(words) from error

    async def volume(self, namespace: str, name: str) -> PersistentVolume:
        """Return a volume that a pod of a namespace claims, as it is now. Raises ObjectError."""
        get = partial(self._api.get, PERSISTENT_VOLUMES, name)
        return await self._ask(namespace, get, f"failed to fetch PV {name} from API server: ")

    async def secret(self, namespace: str, name: str) -> Secret:
        """Return a secret that a volume names, as it is now. Raises ObjectError."""
        get = partial(self._api.get, SECRETS, name, namespace)
        words = f"failed to find the secret {name} in the namespace {namespace} with error: "
        return await self._ask(namespace, get, words)

    async def attachment(self, name: str) -> VolumeAttachment:
        """Return the attachment of a volume to this node, as it is now. Raises ObjectError."""
        return await self._ask(ALL_PODS, partial(self._api.get, VOLUME_ATTACHMENTS, name), "")

    async def resource_claim(self, namespace: str, name: str) -> AllocatedClaim:
        """Return a claim on devices as it is now. Raises ObjectError."""
        get = partial(self._api.get, RESOURCE_CLAIMS, name, namespace)
        words = f"failed to fetch ResourceClaim {namespace}/{name}: "
        return await self._ask(namespace, get, words)

    async def _ask(self, namespace: str, get: Callable[..., Awaitable[T]], words: str) -> T:
        """Ask in the turn of a namespace. Raises ObjectError, which begins with the words."""
        async with self._lookups.share(namespace):
            try:
                return await ask(partial(get, deadline_seconds=ANSWER_SECONDS))
            except ApiError as error:
                raise ObjectError(f"{words}{error.message}") from error
