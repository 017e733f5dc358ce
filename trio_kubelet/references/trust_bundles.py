"""Certificates to trust, from the cluster's ClusterTrustBundles (KEP-3257).

Bundles are few and shared: all are followed once, from the first pod on that projects one. Many
API servers do not serve them; then a pod is told so, and the server is asked again later.

A bundle has a mebibyte, and a pod may name it in hundreds of sources: it is read in a thread, once
in each of its versions, and so are labels compared; namespaces take turns at the thread.
"""

import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import structlog
import trio

from trio_kubelet.k8s import (
    ClusterTrustBundle,
    ClusterTrustBundleProjection,
    LabelSelector,
    LabelSelectorOperator,
    LabelSelectorRequirement,
)
from trio_kubelet.k8s.client import (
    Api,
    ApiError,
    ListSynced,
    ObjectChanged,
    ObjectRemoved,
    WatchEvent,
    reflect,
)
from trio_kubelet.k8s.kinds import CLUSTER_TRUST_BUNDLES
from trio_kubelet.references.cached import LAG_SECONDS, RETRY
from trio_kubelet.references.object_references import ObjectError
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.retries import Retries

log = structlog.get_logger("references")

NOT_SERVED = "ClusterTrustBundle projection is not supported: the API server does not serve them"
DISABLED = "ClusterTrustBundle projection is disabled by its feature gate"

KEPT_BYTES = 16 << 20
"""Of certificates that were read, as text; the bundles that were used longest ago go first."""

_ASK_AGAIN_SECONDS = 60.0
MAX_BYTES = 8 << 20
"""Of the certificates of one source: a volume holds no more."""
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class TrustBundles:
    """All bundles. `on_change` is told the UID of each pod that projects any."""

    def __init__(self, api: Api, on_change: Callable[[str], None], *, enabled: bool) -> None:
        self._api = api
        self._on_change = on_change
        self._enabled = enabled
        self._bundles: dict[str, ClusterTrustBundle] = {}
        self._threads = FairLimiter(1, 1)
        self._read = _ReadBundles()
        self._users: set[str] = set()
        self._wanted = trio.Event()
        self._answered = trio.Event()
        self._served = True
        self._synced = False

    async def run(self) -> None:
        """Follow the bundles as soon as a pod wants any, for ever."""
        await self._wanted.wait()
        await self._until_served()
        await reflect(self._api, CLUSTER_TRUST_BUNDLES, self._take)

    def use(self, uid: str) -> None:
        """A pod projects bundles."""
        self._users.add(uid)
        if self._enabled:
            self._wanted.set()

    def release(self, uid: str) -> None:
        """A pod projects none any more."""
        self._users.discard(uid)

    async def anchors(self, namespace: str, projection: ClusterTrustBundleProjection) -> bytes:
        """Return the certificates of a projection in PEM, each once. Raises ObjectError.

        It is of a pod of that namespace. Cancelled, it finishes what is being read.
        """
        if not self._enabled:
            raise ObjectError(DISABLED)
        with trio.move_on_after(LAG_SECONDS):
            await self._answered.wait()
        if not self._answered.is_set():
            raise ObjectError(
                "failed to sync clustertrustbundle cache: timed out waiting for the condition"
            )
        if not self._served:
            raise ObjectError(NOT_SERVED)
        bundles = self._bundles.copy()
        select = partial(selected_anchors, bundles, projection, self._read.certificates)
        return await self._threads.share(namespace).run_sync(select)

    async def _until_served(self) -> None:
        retries = Retries(RETRY)
        while True:
            try:
                await self._api.list(CLUSTER_TRUST_BUNDLES, limit=1)
            except Exception as error:
                if not isinstance(error, ApiError):
                    log.exception("cluster trust bundle list failed, will retry")
                if not isinstance(error, ApiError) or not error.is_not_found:
                    await retries.wait()
                    continue
                self._served = False
                self._answered.set()
                await trio.sleep(_ASK_AGAIN_SECONDS)
            else:
                return

    async def _take(self, event: WatchEvent[ClusterTrustBundle]) -> None:
        if isinstance(event, ListSynced):
            is_late = self._answered.is_set() and not self._served
            self._served = self._synced = True
            self._answered.set()
            if is_late:
                self._tell()
            return
        name = event.object.metadata.name
        if isinstance(event, ObjectChanged):
            self._bundles[name] = event.object
        elif isinstance(event, ObjectRemoved):
            self._bundles.pop(name, None)
        if self._synced:
            self._tell()

    def _tell(self) -> None:
        for uid in sorted(self._users):
            self._on_change(uid)


Certificates = Mapping[bytes, str]
"""Those of a bundle in PEM, by their DER."""


class _ReadBundles:
    """The certificates of bundles that were read. For one thread at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[ClusterTrustBundle, Certificates]] = OrderedDict()
        self._bytes = 0

    def certificates(self, bundle: ClusterTrustBundle) -> Certificates:
        """Return what `certificates` does for this version of a bundle."""
        name = bundle.metadata.name
        known = self._kept.get(name)
        if known is None or known[0] is not bundle:
            self._drop(name)
            known = self._kept[name] = bundle, certificates(bundle)
            self._bytes += _size(known[1])
        self._kept.move_to_end(name)
        while self._bytes > KEPT_BYTES:
            self._drop(next(iter(self._kept)))
        return known[1]

    def _drop(self, name: str) -> None:
        if name in self._kept:
            self._bytes -= _size(self._kept.pop(name)[1])


def _size(found: Certificates) -> int:
    return sum(map(len, found.values()))


def selected_anchors(
    bundles: Mapping[str, ClusterTrustBundle],
    projection: ClusterTrustBundleProjection,
    read: Callable[[ClusterTrustBundle], Certificates],
) -> bytes:
    """Return the certificates that a projection selects. Raises ObjectError."""
    if projection.name:
        named = bundles.get(projection.name)
        if named is not None:
            return joined([read(named)])
        if projection.optional:
            return b""
        raise ObjectError(
            "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "
            f'"{projection.name}" not found'
        )
    if not projection.signer_name:
        raise ObjectError(
            "ClusterTrustBundle projection requires either name or signerName to be set"
        )
    matching = [
        bundle
        for bundle in bundles.values()
        if bundle.spec.signer_name == projection.signer_name
        and selects(projection.label_selector, bundle.metadata.labels)
    ]
    if not matching and not projection.optional:
        raise ObjectError(
            "combination of signerName and labelSelector matched zero ClusterTrustBundles"
        )
    return joined(map(read, matching))


def joined(read: Iterable[Certificates]) -> bytes:
    """Return the certificates of bundles, each once, in an order that does not change.

    Raises ObjectError if they are more than a volume may hold.
    """
    found: dict[bytes, str] = {}
    for each in read:
        found.update(each)
        if _size(found) > MAX_BYTES:
            raise ObjectError(
                f"the certificates of the ClusterTrustBundles have more than {MAX_BYTES} bytes"
            )
    return "".join(found[each] for each in sorted(found)).encode()


def certificates(bundle: ClusterTrustBundle) -> Certificates:
    """Read the certificates of a bundle. Raises ObjectError with its name if it cannot be read."""
    try:
        found = {ssl.PEM_cert_to_DER_cert(block) for block in _blocks(bundle.spec.trust_bundle)}
    except ValueError as error:
        name = bundle.metadata.name
        raise ObjectError(f'clustertrustbundle "{name}" has what is no certificate') from error
    return {each: ssl.DER_cert_to_PEM_cert(each) for each in found}


def _blocks(text: str) -> Iterator[str]:
    """The certificates in a text; each place of it is looked at once."""
    end = 0
    while (begin := text.find(_BEGIN, end)) >= 0:
        end = text.find(_END, begin + len(_BEGIN))
        if end < 0:
            return
        end += len(_END)
        yield text[begin:end]


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Return whether a selector matches; none matches nothing, an empty one everything."""
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _holds(requirement, labels) for requirement in selector.match_expressions
    )


def _holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    rules: Mapping[str, bool] = {
        LabelSelectorOperator.IN: value is not None and value in requirement.values,
        LabelSelectorOperator.NOT_IN: value not in requirement.values,
        LabelSelectorOperator.EXISTS: value is not None,
        LabelSelectorOperator.DOES_NOT_EXIST: value is None,
    }
    return rules.get(requirement.operator, False)
