"""Credentials from image credential providers (KEP-2133, KEP-4412): who is asked, what is kept.

A provider is asked for an image that one of its `matchImages` is for. Its answer says for which
images it is kept (this one, its registry's, all) and for how long; a failure is never kept. Where
it is given tokens of service accounts, answers are kept for each account, or for each token. Who
asks the same at the same time shares one run of the program. Programs run in turns of namespaces,
each provider's for itself, so that one that hangs holds up nobody but who needs it.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import structlog
import trio
from attrs import define, evolve, field, frozen

from trio_kubelet.config.credential_providers import CACHE_OF_TOKEN, token_attributes
from trio_kubelet.config.records import (
    CredentialProvider,
    ImagePullServiceAccount,
    ServiceAccountTokenAttributes,
)
from trio_kubelet.k8s import Pod
from trio_kubelet.k8s.image_reference import InvalidReferenceError, parse_reference
from trio_kubelet.references import NoReferences, ObjectError, References
from trio_kubelet.runtime.images.credential_plugin import (
    CacheKeyType,
    CredentialPlugin,
    CredentialPluginError,
    CredentialProviderResponse,
    CredentialRequest,
)
from trio_kubelet.runtime.images.credentials import (
    Entries,
    Keyring,
    RegistryCredentials,
    image_matches,
    is_registry,
)
from trio_kubelet.tasks.concurrency import run_all_for_each
from trio_kubelet.tasks.fair_limiter import FairLimiter
from trio_kubelet.tasks.future import Fetches

log = structlog.get_logger("credentials")

RUNS, RUNS_OF_NAMESPACE, RUNS_OF_POD = 16, 8, 2
"""Runs of one provider's program at once."""
MAX_KEPT_ANSWERS = 1000
"""Of one provider; that which was used least recently goes."""
ALL_IMAGES = "<global>"
"""The scope of an answer for all images; no image and no registry has such a name."""


@frozen(kw_only=True)
class ProvidedCredentials:
    """The credentials for an image, and for users why providers that were asked gave none."""

    credentials: tuple[RegistryCredentials, ...] = ()
    problems: tuple[str, ...] = ()


@frozen(kw_only=True)
class _Account:
    """The identity of a pod as a provider is told it."""

    uid: str
    namespace: str
    name: str
    annotations: tuple[tuple[str, str], ...]
    token: str = field(repr=False)

    @property
    def token_hash(self) -> str:
        """A mark of the token that may be kept."""
        return hashlib.sha256(self.token.encode()).hexdigest()

    def key(self, cache_type: str) -> "_Account":
        """The subject that the answers of a provider are kept for; there is no token in it."""
        return evolve(self, token=self.token_hash if cache_type == CACHE_OF_TOKEN else "")

    @property
    def source(self) -> ImagePullServiceAccount:
        """The account as the record of a pull has it."""
        return ImagePullServiceAccount(uid=self.uid, namespace=self.namespace, name=self.name)


class NotForPodError(Exception):
    """A provider has nothing for a pod: it has no service account, or not what it must have."""


_CacheKey: TypeAlias = tuple[str, _Account | None]


@define(eq=False)
class ImageCredentialProvider:
    """One provider: its program, its kept answers, and the runs under way."""

    config: CredentialProvider
    plugin: CredentialPlugin
    references: References | NoReferences
    _kept: OrderedDict[_CacheKey, tuple[Entries, float]] = field(factory=OrderedDict)
    _runs: Fetches[tuple[str, _Account | None], CredentialProviderResponse] = field(factory=Fetches)
    _slots: FairLimiter = field(factory=lambda: FairLimiter(RUNS, RUNS_OF_NAMESPACE, RUNS_OF_POD))

    def is_for(self, repository: str) -> bool:
        """True if it is to be asked for an image."""
        return any(image_matches(each, repository) for each in self.config.match_images)

    async def entries(self, pod: Pod, repository: str) -> Entries:
        """Return what it gives for an image of a pod.

        Raises CredentialPluginError, ObjectError for an account or a token that cannot be had,
        NotForPodError.
        """
        attributes = token_attributes(self.config)
        account = await self._account(pod, attributes) if attributes is not None else None
        cache_type = attributes.cache_type if attributes is not None else ""
        owner = account.key(cache_type) if account is not None else None
        registry = repository.partition("/")[0]
        scopes = {
            CacheKeyType.IMAGE: repository,
            CacheKeyType.REGISTRY: registry,
            CacheKeyType.GLOBAL: ALL_IMAGES,
        }
        for scope in scopes.values():
            if (kept := self._find((scope, owner))) is not None:
                return kept
        run = account.key(CACHE_OF_TOKEN) if account is not None else None
        ask = partial(self._ask, pod, repository, account)
        answer = await self._runs.get((repository, run), ask)
        if account is not None and cache_type != CACHE_OF_TOKEN:
            _refuse_echo(self.config.name, answer, account)
        entries = _entries(answer, account)
        self._keep((scopes[CacheKeyType(answer.cache_key_type)], owner), entries, answer)
        return entries

    async def _account(
        self, pod: Pod, attributes: ServiceAccountTokenAttributes
    ) -> _Account | None:
        """The service account of a pod; None if it has none and needs none."""
        meta, name = pod.metadata, pod.spec.service_account_name
        if not name:
            if attributes.require_service_account:
                raise NotForPodError
            return None
        found = (await self.references.service_account(meta.namespace, name)).metadata
        required = attributes.required_service_account_annotation_keys
        if not found.annotations.keys() >= set(required):
            raise NotForPodError
        wanted = (*required, *attributes.optional_service_account_annotation_keys)
        audience = attributes.service_account_token_audience
        return _Account(
            uid=found.uid,
            namespace=meta.namespace,
            name=name,
            annotations=tuple(
                sorted((key, found.annotations[key]) for key in wanted if key in found.annotations)
            ),
            token=await self.references.account_token(pod, audience, found.uid),
        )

    async def _ask(
        self, pod: Pod, repository: str, account: _Account | None
    ) -> CredentialProviderResponse:
        request = CredentialRequest(image=repository)
        if account is not None:
            request = evolve(
                request,
                service_account_token=account.token,
                service_account_annotations=dict(account.annotations),
            )
        async with self._slots.share_of(pod.metadata):
            return await self.plugin.ask(request)

    def _find(self, key: _CacheKey) -> Entries | None:
        entries, until = self._kept.get(key, ((), -math.inf))
        if trio.current_time() >= until:
            return None
        self._kept.move_to_end(key)
        return entries

    def _keep(self, key: _CacheKey, entries: Entries, answer: CredentialProviderResponse) -> None:
        duration = answer.cache_duration
        if duration is None:
            duration = self.config.default_cache_duration
        seconds = duration.total_seconds() if duration is not None else 0.0
        now = trio.current_time()
        for old in [old for old, (_, until) in self._kept.items() if until <= now]:
            del self._kept[old]
        if seconds <= 0:
            return
        self._kept[key] = entries, now + seconds
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_KEPT_ANSWERS:
            self._kept.popitem(last=False)


class ImageCredentialProviders:
    """All providers of a node, in the order of the configuration."""

    def __init__(self, providers: Sequence[ImageCredentialProvider] = ()) -> None:
        self._providers = providers

    def use(self, providers: Sequence[ImageCredentialProvider]) -> None:
        """Ask others from the next image on; the answers that were kept are forgotten."""
        self._providers = providers

    async def lookup(self, pod: Pod, image: str) -> ProvidedCredentials:
        """Ask all providers that are for an image, at once; raises nothing of theirs.

        The log says why one gave nothing.
        """
        try:
            repository = parse_reference(image).repository
        except InvalidReferenceError:
            return ProvidedCredentials()
        asked = [each for each in self._providers if each.is_for(repository)]
        found: dict[str, Entries] = {}
        problems: dict[str, str] = {}

        async def ask(provider: ImageCredentialProvider) -> None:
            name = provider.config.name
            try:
                found[name] = await provider.entries(pod, repository)
            except NotForPodError:
                pass
            except (CredentialPluginError, ObjectError) as error:
                problems[name] = f'credential provider "{name}" gave no credentials'
                log.warning(
                    "image credential provider failed",
                    provider=name,
                    image=repository,
                    pod=pod.metadata.key,
                    error=str(error),
                )

        if asked:
            await run_all_for_each(asked, ask, len(asked))
        names = [each.config.name for each in asked]
        entries = tuple(entry for name in names for entry in found.get(name, ()))
        return ProvidedCredentials(
            credentials=Keyring(entries).lookup(image),
            problems=tuple(problems[name] for name in names if name in problems),
        )


def _entries(answer: CredentialProviderResponse, account: _Account | None) -> Entries:
    source = account.source if account is not None else None
    return tuple(
        (
            key,
            RegistryCredentials(username=each.username, password=each.password, source=source),
        )
        for key, each in answer.auth.items()
        if is_registry(key)
    )


def _refuse_echo(name: str, answer: CredentialProviderResponse, account: _Account) -> None:
    """Raise CredentialPluginError for a token as password that others would get from the cache."""
    if any(each.password == account.token for each in answer.auth.values()):
        raise CredentialPluginError(
            f"credential provider plugin {name} returned the service account token as the password "
            "which is not allowed when service account cache type is not set to 'Token'"
        )
