"""Seeing that a container's image is there for its pod: look, wait, pull, and say what happened.

The decisions are those of the machine in `state_machines/image.py`; how far each container's
image is stands in the `PodImages` of its pod, and every step goes to the journal. Pulls go one
after another (serializeImagePulls) or a limited number side by side, in turns of namespaces, no
faster than registryPullQPS. A pull has no deadline, as its caller may give up at any time; who asks
next looks first.
"""

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice

import trio
from attrs import define, evolve, field, frozen

from state_machines.backoff import NANOSECONDS
from state_machines.image import (
    IMAGE,
    ImageEvent,
    ImageEvidence,
    ImageState,
    PullPolicy,
    default_pull_policy,
)
from trio_kubelet.config.records import ImagePullSecret, ImagePullServiceAccount
from trio_kubelet.errors import ConfigError
from trio_kubelet.k8s import Duration, Pod
from trio_kubelet.k8s.image_reference import (
    InvalidReferenceError,
    parse_reference,
    shown_name,
    with_default_tag,
)
from trio_kubelet.rpc import Code, RpcError
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.images.access import AccessCheck
from trio_kubelet.runtime.images.credential_providers import (
    ImageCredentialProviders,
    ProvidedCredentials,
)
from trio_kubelet.runtime.images.credentials import Keyring, RegistryCredentials
from trio_kubelet.runtime.images.pod_images import PodImages, WantedImage
from trio_kubelet.runtime.images.pull_rate import PullRate
from trio_kubelet.runtime.images.pull_records import ImageAccess, ShownCredentials
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.telemetry import EventRecorder, EventType, Journal, Walk

LOOKUP_THREADS = 4
MAX_LOGINS_TRIED = 20
"""For one pull, during which others may wait for their turn."""
PULL_ERRORS = ("RegistryUnavailable", "SignatureValidationFailed")
"""Reasons that a runtime tells by beginning its message with them; all others are ErrImagePull.

Codes of gRPC tell nothing of registries: a runtime that restarts is UNAVAILABLE, too.
"""

_IMAGE_ID = re.compile(r"(?:sha(?:256|384|512):)?[0-9a-f]{64,128}")
"""A digest of its configuration; CRI-O leaves out the algorithm."""

OUTCOME_UNKNOWN = frozenset({Code.UNAVAILABLE, Code.CANCELLED, Code.DEADLINE_EXCEEDED})
"""After these the image may be there all the same."""


@frozen(kw_only=True)
class ImageLookup:
    """The end of the one look of a request for an image."""

    policy: PullPolicy
    present: bool | None
    """None if the runtime was not asked, or did not answer."""
    access: AccessCheck | None = None
    """None if it does not matter who may use the image."""
    needs_pull: bool = False


@frozen
class ImageError(Exception):
    """An image is not there. `reason` and `message` are the container's waiting state.

    `until_ns`: before that time (nanoseconds since the epoch) the next pull is not tried.
    """

    reason: str
    message: str
    until_ns: int | None = None

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@frozen(kw_only=True)
class ImageManager:
    """Gets images for all pods. Holds no state of any pod.

    `limiter` bounds the pulls under way. Credentials are asked
    for anew at each pull: `pod_keyring` gives those of the pod's own secrets, which are tried
    first, `read_keyring` those of the node, and blocks; `threads` are for that; `providers` come
    last. `access` knows who may use what is there. `runtime_handler` names the handler that a
    pod's images are for, or raises ConfigError; without it the runtime is told of none
    (RuntimeClassInImageCriApi).
    `on_pull` is called with the UID of a pod and the seconds that a pull for it took, its turn and
    its failure included.
    """

    client: RuntimeClient
    recorder: EventRecorder
    journal: Journal
    clock: Clock
    limiter: FairLimiter
    rate: PullRate
    read_keyring: Callable[[], Keyring]
    pod_keyring: Callable[[Pod], Awaitable[Keyring]]
    providers: ImageCredentialProviders = field(factory=ImageCredentialProviders)
    access: ImageAccess = field(factory=ImageAccess)
    runtime_handler: Callable[[Pod], Awaitable[str]] | None = None
    on_lookup: Callbacks[[ImageLookup]] = field(factory=Callbacks)
    on_pull: Callbacks[[str, float]] = field(factory=Callbacks)
    threads: FairLimiter = field(
        factory=lambda: FairLimiter(LOOKUP_THREADS, LOOKUP_THREADS // 2, 1)
    )

    async def ensure(
        self, pod: Pod, wanted: WantedImage, known: PodImages, sandbox: cri.PodSandboxConfig
    ) -> cri.Image:
        """The image, pulled if its policy says so.

        Raises ImageError. Cancelled, a pull may still go on in the runtime. Containers of a pod
        that want the same image take turns: what one has pulled, the next one finds.
        """
        request = _Request(self, pod, wanted, known, sandbox)
        known.begin(wanted.key, wanted.image)
        request.check_name()
        async with known.turn(wanted.image):
            return await request.fulfil()


@define(eq=False)
class _Request:
    """One container's way to an image, from one sync to the end of that sync."""

    _images: ImageManager
    _pod: Pod
    _wanted: WantedImage
    _known: PodImages
    _sandbox: cri.PodSandboxConfig
    _own: Keyring | None = None
    _provided: ProvidedCredentials | None = None
    _handler: str = ""

    @property
    def _spec(self) -> cri.ImageSpec:
        return cri.ImageSpec(
            image=with_default_tag(self._wanted.image),
            user_specified_image=self._wanted.image,
            annotations=dict(self._pod.metadata.annotations),
            runtime_handler=self._handler,
        )

    @property
    def _state(self) -> ImageState:
        return self._known.state(self._wanted.key)

    def check_name(self) -> None:
        """Refuse a name that is none before anything else is done with it. Raises ImageError."""
        try:
            parse_reference(self._wanted.image)
        except InvalidReferenceError as error:
            self._looked(ImageEvent.NAME_REFUSED)
            image = shown_name(self._wanted.image)
            message = (
                f'Failed to apply default image tag "{image}": '
                f'couldn\'t parse image name "{image}": {error}'
            )
            self._event(EventType.WARNING, "InspectFailed", message)
            raise self._failed("InvalidImageName", message) from error

    async def fulfil(self) -> cri.Image:
        image = await self._look()
        if self._state is ImageState.PRESENT:
            assert image is not None, "present means that the runtime has shown it"
            self._known.found(self._wanted.image)
            message = f'Container image "{self._wanted.image}" already present on machine'
            if self._images.access.is_verified:
                message = f"{message} and can be accessed by the pod"
            self._event(EventType.NORMAL, "Pulled", message)
            return image
        if self._state is ImageState.MISSING:
            # The same words for an image that is there, so that nobody finds out that it is.
            message = (
                f'Container image "{self._wanted.image}" is not present with pull policy of Never'
            )
            self._event(EventType.WARNING, "ErrImageNeverPull", message)
            raise self._failed("ErrImageNeverPull", message)
        if self._state is ImageState.BACK_OFF:
            self._wait_for_back_off()
        return await self._pull()

    async def _look(self) -> cri.Image | None:
        """Ask the runtime; whatever it says is a step of the machine."""
        if self._state is ImageState.PULLING:
            # The pull of an earlier sync was cut short, and nobody has said so yet.
            self._step(ImageEvent.PULL_CANCELLED)
        try:
            image = await self._ask()
        except ImageError:
            self._looked(ImageEvent.LOOK_FAILED)
            raise
        check = await self._check_access(image) if image is not None else None
        evidence = ImageEvidence(
            policy=self._policy(),
            present=image is not None,
            allowed=check is not AccessCheck.MUST_AUTHENTICATE,
            in_back_off=self._remaining_back_off() > 0,
        )
        self._looked(ImageEvent.LOOKED, evidence, check)
        return image

    def _looked(
        self,
        event: ImageEvent,
        evidence: ImageEvidence | None = None,
        access: AccessCheck | None = None,
    ) -> None:
        """Take the step that ends the look, and tell of it."""
        policy = self._policy()
        details: dict[str, str] = {"policy": policy}
        if evidence is not None:
            details["present"] = "true" if evidence.present else "false"
        if access is not None:
            details["access"] = access
        self._step(event, evidence, details)
        self._images.on_lookup.call(
            ImageLookup(
                policy=policy,
                present=evidence.present if evidence is not None else None,
                access=access,
                needs_pull=self._state in (ImageState.PULLING, ImageState.BACK_OFF),
            )
        )

    async def _check_access(self, image: cri.Image) -> AccessCheck | None:
        if self._policy() is PullPolicy.ALWAYS:
            return None  # The registry is asked in any case.
        shown = ShownCredentials(self._shown_secrets, self._shown_accounts)
        return await self._images.access.check(self._wanted.image, image, shown)

    async def _shown_secrets(self) -> Sequence[ImagePullSecret]:
        found = await self._looked_up(await self._own_keyring())
        return [each.source for each in found if isinstance(each.source, ImagePullSecret)]

    async def _shown_accounts(
        self, recorded: Sequence[ImagePullServiceAccount]
    ) -> Sequence[ImagePullServiceAccount]:
        """The accounts that providers give credentials for; not asked if none can be recorded."""
        own = (self._pod.metadata.namespace, self._pod.spec.service_account_name)
        if own not in [(each.namespace, each.name) for each in recorded]:
            return ()
        found = (await self._ask_providers()).credentials
        return [each.source for each in found if isinstance(each.source, ImagePullServiceAccount)]

    async def _ask(self) -> cri.Image | None:
        try:
            if self._images.runtime_handler is not None:
                self._handler = await self._images.runtime_handler(self._pod)
            return await self._images.client.image_status(self._spec)
        except (RpcError, ConfigError) as error:
            message = f'Failed to inspect image "{self._wanted.image}": {error.message}'
            self._event(EventType.WARNING, "InspectFailed", message)
            raise self._failed("ImageInspectError", message) from error

    def _policy(self) -> PullPolicy:
        given = self._wanted.pull_policy
        if given in list(PullPolicy):
            return PullPolicy(given)
        return default_pull_policy(self._wanted.image)

    def _wait_for_back_off(self) -> None:
        """Raise while the back-off lasts; step on when it is over."""
        image, now_ns = self._wanted.image, self._images.clock.now_ns()
        remaining = self._remaining_back_off()
        if remaining <= 0:
            self._step(ImageEvent.RETRY_DUE)
            return
        message = f'Back-off pulling image "{image}"'
        self._event(EventType.NORMAL, "BackOff", message)
        last = self._known.last_error(image)
        raise self._failed(
            "ImagePullBackOff",
            f"{message}: {last}" if last else message,
            until_ns=now_ns + math.ceil(remaining * NANOSECONDS),
        )

    def _remaining_back_off(self) -> float:
        """In seconds."""
        now_ns = self._images.clock.now_ns()
        return self._known.remaining_seconds(self._wanted.image, now_ns)

    async def _pull(self) -> cri.Image:
        image = self._wanted.image
        asked_at = trio.current_time()
        try:
            pull = await self._pull_in_turn()
        except RpcError as error:
            message = "; ".join((error.message, *(await self._ask_providers()).problems))
            self._event(EventType.WARNING, "Failed", f'Failed to pull image "{image}": {message}')
            told = (each for each in PULL_ERRORS if message.startswith(each))
            raise self._pull_failed(next(told, "ErrImagePull"), message) from error
        except OSError as error:
            message = f'Failed to record image pull intent for container image "{image}": {error}'
            raise self._pull_failed("ErrImagePull", message) from error
        except trio.Cancelled:
            self._step(ImageEvent.PULL_CANCELLED)
            raise
        finally:
            now = trio.current_time()
            self._images.on_pull.call(self._pod.metadata.uid, now - asked_at)
        self._step(ImageEvent.PULLED)
        found = await self._record(pull)
        self._known.found(image)
        pulled, waited = (_milliseconds(now - since) for since in (pull.began_at, asked_at))
        self._event(
            EventType.NORMAL,
            "Pulled",
            f'Successfully pulled image "{image}" in {pulled} ({waited} including waiting). '
            f"Image size: {found.size if found else 0} bytes.",
        )
        return found if found is not None else cri.Image(id=image)

    async def _pull_in_turn(self) -> "_Pull":
        """Wait for a turn and pull. Raises RpcError, and OSError if the pull is not recorded.

        The credentials are fetched first: a pod whose secrets do not come takes no other's turn.
        """
        credentials = await self._credentials()
        async with self._images.limiter.share_of(self._pod.metadata):
            return await self._pull_now(credentials)

    async def _pull_now(self, credentials: Sequence[RegistryCredentials]) -> "_Pull":
        image, access = self._wanted.image, self._images.access
        began_at = trio.current_time()
        if not self._images.rate.take(began_at, self._pod.metadata.namespace):
            raise RpcError(Code.RESOURCE_EXHAUSTED, "pull QPS exceeded")
        await access.begin(image)
        self._event(EventType.NORMAL, "Pulling", f'Pulling image "{image}"')
        try:
            answer, used = await self._pull_with_any(credentials)
        except RpcError as error:
            if error.code in OUTCOME_UNKNOWN:
                access.leave_open(image)
            else:
                with trio.CancelScope(shield=True):
                    await access.fail(image)
            raise
        except BaseException:
            access.leave_open(image)
            raise
        return _Pull(began_at, answer, used)

    async def _record(self, pull: "_Pull") -> cri.Image | None:
        """Read the image back and record who pulled it. Raises ImageError.

        If it raises or is cancelled, the pull is recorded if its answer is the image's id, and
        else is left open.
        """
        found = None
        try:
            found = await self._ask()
        finally:
            image, access = self._wanted.image, self._images.access
            image_ref = stored_id(pull.answer, found)
            if image_ref is None:
                access.leave_open(image)
            else:
                with trio.CancelScope(shield=True):
                    source = pull.used.source if pull.used is not None else None
                    await access.succeed(image, image_ref, source)
        return found

    async def _credentials(self) -> Sequence[RegistryCredentials]:
        """Credentials for the image: the pod's, the node's, the providers'; each asked for once."""
        own = await self._own_keyring()
        found = await self._looked_up(own, self._images.read_keyring)
        provided = (await self._ask_providers()).credentials
        return tuple(islice(dict.fromkeys((*found, *provided)), MAX_LOGINS_TRIED))

    async def _own_keyring(self) -> Keyring:
        if self._own is None:
            self._own = await self._images.pod_keyring(self._pod)
        return self._own

    async def _ask_providers(self) -> ProvidedCredentials:
        if self._provided is None:
            self._provided = await self._images.providers.lookup(self._pod, self._wanted.image)
        return self._provided

    async def _looked_up(
        self, own: Keyring, read_keyring: Callable[[], Keyring] = Keyring
    ) -> Sequence[RegistryCredentials]:
        """Compare the image with each login, in a thread: it reads files, and they may be many."""

        def look_up() -> Sequence[RegistryCredentials]:
            rings = (own, read_keyring())
            return [each for ring in rings for each in ring.lookup(self._wanted.image)]

        return await self._images.threads.share_of(self._pod.metadata).run_sync(look_up)

    async def _pull_with_any(
        self, credentials: Sequence[RegistryCredentials]
    ) -> tuple[str, RegistryCredentials | None]:
        """Try credentials one after another, none if there are none. Raises the last error.

        Returns the runtime's reference of the image, and the credentials that opened the registry.
        """
        pull = self._images.client.pull_image
        *others, last = _each_login_once(credentials) or (None,)
        for used in others:
            with suppress(RpcError):
                return await pull(self._spec, _auth(used), self._sandbox), used
        return await pull(self._spec, _auth(last), self._sandbox), last

    def _pull_failed(self, reason: str, message: str) -> ImageError:
        self._step(ImageEvent.PULL_FAILED)
        until_ns = self._known.pull_failed(
            self._wanted.image, f"{reason}: {message}", self._images.clock.now_ns()
        )
        return self._failed(reason, message, until_ns=until_ns)

    def _failed(self, reason: str, message: str, *, until_ns: int | None = None) -> ImageError:
        self._event(EventType.WARNING, "Failed", f"Error: {reason}")
        return ImageError(reason, message, until_ns)

    def _event(self, kind: EventType, reason: str, message: str) -> None:
        self._images.recorder.pod(
            self._pod, kind, reason, message, container=self._wanted.container
        )

    def _step(
        self,
        event: ImageEvent,
        evidence: ImageEvidence | None = None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        name = self._wanted.key
        key = f"{self._pod.metadata.key}/{name}"
        walk = Walk(IMAGE, self._state, self._images.journal, key, notes_all=True)
        walk.step(event, evidence, cause=self._wanted.image, **(details or {}))
        self._known.reach(name, walk.state)


@frozen
class _Pull:
    """A pull that worked: when it began, the runtime's answer, and what opened the registry."""

    began_at: float
    answer: str
    used: RegistryCredentials | None


def stored_id(answer: str, found: cri.Image | None) -> str | None:
    """Return the id under which a pulled image is found later; None if nobody has told it.

    `answer` is the runtime's answer to the pull: the id, or in some runtimes (CRI-O) a name with
    a digest. `found` is the image as the runtime shows it after the pull.
    """
    if _IMAGE_ID.fullmatch(answer):
        return answer
    return found.id if found is not None else None


def _each_login_once(credentials: Iterable[RegistryCredentials]) -> Sequence[RegistryCredentials]:
    """The same login may be in several secrets, and the node may have it as well."""
    logins: dict[RegistryCredentials, RegistryCredentials] = {}
    for each in credentials:
        logins.setdefault(evolve(each, source=None, email=""), each)
    return tuple(logins.values())


def _auth(credentials: RegistryCredentials | None) -> cri.AuthConfig | None:
    if credentials is None:
        return None
    return cri.AuthConfig(
        username=credentials.username,
        password=credentials.password,
        identity_token=credentials.identity_token,
    )


def _milliseconds(seconds: float) -> Duration:
    return Duration.from_seconds(round(seconds, 3))
