"""The image service: a store of images, filled by pulls from a pretended registry.

The registry has every image that somebody names, unless the options say otherwise: `HollowRegistry`
lists what it knows of single images (latency, failures, credentials) and whether unknown names
exist. An image's ids are derived from its name, so that they are the same in every run; moving a
tag means giving its `RemoteImage` another `content`.
"""

import base64
import hashlib
from collections.abc import Mapping

import trio
from attrs import evolve, field, frozen

from trio_kubelet.k8s.image_reference import InvalidReferenceError, Reference, parse_reference
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.tasks.clock import Clock

PAUSE_IMAGE = "registry.k8s.io/pause:3.10"
_MEBIBYTE = 1 << 20


@frozen(kw_only=True)
class RemoteImage:
    """One image of the registry; `content` is whatever makes its digest differ from others'.

    `pull_seconds` is the time a pull takes. `failures` are raised by the first pulls, one each.
    `credentials` (user, password) are required if set. `uid`, `gid`, `groups` and `username` are
    the image's own user.
    """

    content: str = ""
    size_bytes: int = 4 * _MEBIBYTE
    pull_seconds: float = 0.0
    failures: tuple[RpcError, ...] = ()
    credentials: tuple[str, str] | None = None
    uid: int | None = None
    gid: int = 0
    groups: tuple[int, ...] = ()
    username: str = ""


@frozen(kw_only=True)
class HollowRegistry:
    """The images that can be pulled.

    `images` by full reference; with `has_all` unlisted ones exist too, and a pull of theirs takes
    `pull_seconds`. `unreachable` are the hosts (`docker.io`, `127.0.0.1:5000`) that are away.
    """

    images: Mapping[str, RemoteImage] = field(factory=dict)
    has_all: bool = True
    pull_seconds: float = 0.0
    unreachable: frozenset[str] = frozenset()

    def find(self, reference: Reference) -> RemoteImage | None:
        """The image behind a reference, or None if there is none."""
        if found := self.images.get(str(reference)):
            return found
        return RemoteImage(pull_seconds=self.pull_seconds) if self.has_all else None


@frozen(kw_only=True)
class StoredImage:
    """One image on the node, with every name that leads to it."""

    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    size_bytes: int = 0
    uid: int | None = None
    gid: int = 0
    groups: tuple[int, ...] = ()
    username: str = ""
    pinned: bool = False


class ImageStore:
    """The images on the node, and the rpcs of ImageService."""

    def __init__(self, clock: Clock, registry: HollowRegistry, present: tuple[str, ...]) -> None:
        self._clock = clock
        self.registry = registry
        self._images: dict[str, StoredImage] = {}
        self._pulls: dict[str, int] = {}
        for name in present:
            reference = parse_reference(name)
            self._store(reference, registry.find(reference) or RemoteImage())
        pause = self._store(parse_reference(PAUSE_IMAGE), RemoteImage())
        self._images[pause] = evolve(self._images[pause], pinned=True)

    def by_id(self, image_id: str) -> StoredImage | None:
        """The image with that id, with or without `sha256:`."""
        return self._images.get(f"sha256:{image_id.removeprefix('sha256:')}")

    def resolve(self, name: str) -> StoredImage | None:
        """The image on the node that an id or a reference leads to."""
        if found := self.by_id(name):
            return found
        try:
            wanted = str(parse_reference(name))
        except InvalidReferenceError:
            return None
        return next(
            (i for i in self._images.values() if wanted in i.tags or wanted in i.digests), None
        )

    async def pull(self, request: cri.PullImageRequest) -> cri.PullImageResponse:
        """PullImage: wait as long as the registry says, then store the image.

        Cancelling it stores nothing. Raises NOT_FOUND for an unknown image.
        """
        name = request.image.image
        try:
            reference = parse_reference(name)
        except InvalidReferenceError as error:
            text = f'failed to parse image reference "{name}": {error}'
            raise RpcError(Code.UNKNOWN, text) from error
        if reference.domain in self.registry.unreachable:
            await trio.lowlevel.checkpoint()
            raise _pull_error(Code.UNKNOWN, reference, _connection_refused(reference))
        remote = self.registry.find(reference)
        await trio.sleep(remote.pull_seconds if remote else 0)
        if remote is None:
            raise _pull_error(Code.NOT_FOUND, reference, f"{reference}: not found")
        self._check_credentials(reference, remote, request.auth)
        tried = self._pulls[name] = self._pulls.get(name, 0) + 1
        if tried <= len(remote.failures):
            raise remote.failures[tried - 1]
        return cri.PullImageResponse(image_ref=self._store(reference, remote))

    async def list(self, request: cri.ListImagesRequest) -> cri.ListImagesResponse:
        """ListImages: all of them; the filter is ignored, as containerd does."""
        del request
        return cri.ListImagesResponse(images=[_image(image) for image in self._images.values()])

    async def status(self, request: cri.ImageStatusRequest) -> cri.ImageStatusResponse:
        """ImageStatus: the image, or an empty answer if it is not on the node."""
        found = self.resolve(request.image.image)
        return cri.ImageStatusResponse(image=_image(found)) if found else cri.ImageStatusResponse()

    async def remove(self, request: cri.RemoveImageRequest) -> cri.RemoveImageResponse:
        """RemoveImage: drop the image with all of its names; no error if it is not there."""
        if found := self.resolve(request.image.image):
            del self._images[found.id]
        return cri.RemoveImageResponse()

    async def fs_info(self, request: cri.ImageFsInfoRequest) -> cri.ImageFsInfoResponse:
        """ImageFsInfo: what the images take, on one filesystem."""
        del request
        usage = cri.FilesystemUsage(
            timestamp=self._clock.now_ns(),
            fs_id=cri.FilesystemIdentifier(mountpoint="/var/lib/hollow/images"),
            used_bytes=cri.UInt64Value(value=sum(i.size_bytes for i in self._images.values())),
            inodes_used=cri.UInt64Value(value=100 * len(self._images)),
        )
        return cri.ImageFsInfoResponse(image_filesystems=[usage])

    def _check_credentials(
        self, reference: Reference, remote: RemoteImage, auth: cri.AuthConfig
    ) -> None:
        if remote.credentials is None or _credentials(auth, reference.domain) == remote.credentials:
            return
        reason = (
            "pull access denied, repository does not exist or may require authorization: "
            "authorization failed: no basic auth credentials"
        )
        raise _pull_error(Code.UNKNOWN, reference, reason)

    def _store(self, reference: Reference, remote: RemoteImage) -> str:
        """Put the image under its names, taking its tag from whatever had it; return its id."""
        content = remote.content or reference.repository + ":" + reference.tag
        digest = reference.digest or _digest("manifest", content)
        image_id = _digest("config", content or digest)
        tag = f"{reference.repository}:{reference.tag}" if reference.tag else ""
        for other in list(self._images.values()):
            if tag in other.tags and other.id != image_id:
                kept = tuple(name for name in other.tags if name != tag)
                self._images[other.id] = evolve(other, tags=kept)
        before = self._images.get(image_id, StoredImage(id=image_id))
        self._images[image_id] = evolve(
            before,
            tags=_with(before.tags, tag),
            digests=_with(before.digests, f"{reference.repository}@{digest}"),
            size_bytes=remote.size_bytes,
            uid=remote.uid,
            gid=remote.gid,
            groups=remote.groups,
            username=remote.username,
        )
        return image_id


def _image(image: StoredImage) -> cri.Image:
    shown = cri.Image(
        id=image.id,
        repo_tags=list(image.tags),
        repo_digests=list(image.digests),
        size=image.size_bytes,
        username=image.username,
        pinned=image.pinned,
    )
    if image.uid is not None:
        shown.uid = cri.Int64Value(value=image.uid)
    return shown


def _credentials(auth: cri.AuthConfig, domain: str) -> tuple[str, str] | None:
    """The user and password that a pull offers to this registry."""
    server = auth.server_address.partition("://")[2] or auth.server_address
    if server and server.partition("/")[0] != domain:
        return None
    if auth.username:
        return auth.username, auth.password
    if auth.auth:
        user, _, password = base64.b64decode(auth.auth).decode().partition(":")
        return user, password
    return None


def _pull_error(code: Code, reference: Reference, reason: str) -> RpcError:
    text = f'failed to pull and unpack image "{reference}": '
    return RpcError(code, f"{text}failed to resolve image: {reason}")


def _connection_refused(reference: Reference) -> str:
    path = reference.repository.removeprefix(f"{reference.domain}/")
    url = f"https://{reference.domain}/v2/{path}/manifests/{reference.tag or reference.digest}"
    return f'failed to do request: Head "{url}": dial tcp: connect: connection refused'


def _digest(kind: str, content: str) -> str:
    return "sha256:" + hashlib.sha256(f"{kind} {content}".encode()).hexdigest()


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(sorted({*names, name} - {""}))
