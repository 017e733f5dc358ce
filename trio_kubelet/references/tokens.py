"""Tokens for the service accounts of pods, bound to the pod, and kept fresh.

A token is renewed when 80 % of its life are over, or after a day; somewhat earlier, so that many
tokens made at once are not renewed at once. The pod goes on with the one it has meanwhile, and
is told when the new one is there; one that cannot be renewed serves as long as it is valid.
Those of one pod are renewed one after another, whatever their number, and the pod is told once.
Tokens are never logged.
"""

import math
import random
from collections import deque
from collections.abc import Callable
from functools import partial

import structlog
import trio
from attrs import define, field, frozen

from trio_kubelet.k8s import (
    BoundObjectReference,
    ObjectMeta,
    Pod,
    TokenRequest,
    TokenRequestSpec,
)
from trio_kubelet.k8s.client import Api, ApiError
from trio_kubelet.k8s.kinds import SERVICE_ACCOUNTS
from trio_kubelet.references.cached import ask
from trio_kubelet.references.object_references import ObjectError
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.concurrency import BackgroundTasks
from trio_kubelet.tasks.fair_limiter import FairLimiter

log = structlog.get_logger("tokens")

_SECOND_NS = 1_000_000_000
_LONGEST_USE_SECONDS = 24 * 60 * 60
_USED_SHARE = 0.8
_JITTER_SECONDS = 10.0
_RENEWAL_INTERVAL_SECONDS = 60.0
"""Pods ask at each of their syncs; a renewal is begun at most so often."""
_DEFAULT_LIFE_SECONDS = 60 * 60
MAX_TOKENS_OF_POD = 100


@frozen(kw_only=True)
class TokenKey:
    """The purpose of a token."""

    pod_uid: str
    audience: str
    expiration_seconds: int | None
    service_account_uid: str = ""
    """Of the account that it has to be for; empty: of whoever has the name."""


@frozen(kw_only=True)
class Token:
    """A token, and when it is to be renewed and ends, in nanoseconds since the epoch."""

    text: str = field(repr=False)
    renew_at_ns: int
    expires_at_ns: int


def renewal_time_ns(expires_at_ns: int, life_seconds: float, jitter_seconds: float) -> int:
    """Return when a token of that life is to be renewed."""
    issued_at_ns = expires_at_ns - round(life_seconds * _SECOND_NS)
    used_seconds = min(life_seconds * _USED_SHARE, _LONGEST_USE_SECONDS)
    return issued_at_ns + round((used_seconds - jitter_seconds) * _SECOND_NS)


class Tokens:
    """The tokens of all pods here. `on_change` is told the UID of a pod whose token is new."""

    def __init__(
        self, api: Api, clock: Clock, on_change: Callable[[str], None], lookups: FairLimiter
    ) -> None:
        self._api = api
        self._lookups = lookups
        self._clock = clock
        self._on_change = on_change
        self._pods: dict[str, _PodTokens] = {}
        self._tasks = BackgroundTasks()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Renew tokens in the background, for ever."""
        await self._tasks.run(task_status=task_status)

    async def get(
        self,
        pod: Pod,
        audience: str,
        expiration_seconds: int | None,
        *,
        service_account_uid: str = "",
    ) -> str:
        """Return a token that is valid; waits only where there is none yet.

        Raises ObjectError, of a token beyond MAX_TOKENS_OF_POD, too.
        """
        key = TokenKey(
            pod_uid=pod.metadata.uid,
            audience=audience,
            expiration_seconds=expiration_seconds,
            service_account_uid=service_account_uid,
        )
        tokens = self._pods.setdefault(key.pod_uid, _PodTokens())
        if key not in tokens.entries and len(tokens.entries) >= MAX_TOKENS_OF_POD:
            words = f"a pod has at most {MAX_TOKENS_OF_POD} service account tokens that differ in"
            raise ObjectError(f"{words} audience or expirationSeconds")
        entry = tokens.entries.setdefault(key, _Entry())
        async with entry.lock:
            now_ns = self._clock.now_ns()
            token = entry.token
            if token is None or token.expires_at_ns <= now_ns:
                token = await self._first(pod, key, entry)
            elif token.renew_at_ns <= now_ns:
                self._ask_for_renewal(pod, key, tokens)
        return token.text

    def forget(self, pod_uid: str) -> None:
        """A pod is gone."""
        tokens = self._pods.pop(pod_uid, None)
        if tokens is not None:
            tokens.due.clear()

    async def _first(self, pod: Pod, key: TokenKey, entry: "_Entry") -> Token:
        try:
            token = await self._request(pod, key)
        except ApiError as error:
            if entry.token is None:
                raise ObjectError(f"failed to fetch token: {error.message}") from error
            raise ObjectError(
                f"token of service account {pod.metadata.namespace}/"
                f"{pod.spec.service_account_name} expired and refresh failed: {error.message}"
            ) from error
        entry.token = token
        return token

    def _ask_for_renewal(self, pod: Pod, key: TokenKey, tokens: "_PodTokens") -> None:
        now = trio.current_time()
        entry = tokens.entries[key]
        if now < entry.next_attempt:
            return
        entry.next_attempt = now + _RENEWAL_INTERVAL_SECONDS
        tokens.due.append(key)
        if not tokens.are_being_renewed:
            tokens.are_being_renewed = True
            self._tasks.start(partial(self._renew, pod, tokens))

    async def _renew(self, pod: Pod, tokens: "_PodTokens") -> None:
        """Renew the tokens of a pod that are due, and tell of those that are new."""
        changed = False
        while tokens.due:
            changed |= await self._renew_one(pod, tokens.due.popleft(), tokens)
        tokens.are_being_renewed = False
        if changed and self._pods.get(pod.metadata.uid) is tokens:
            self._on_change(pod.metadata.uid)

    async def _renew_one(self, pod: Pod, key: TokenKey, tokens: "_PodTokens") -> bool:
        """Renew a token; returns False if it stays as it is."""
        try:
            tokens.entries[key].token = await self._request(pod, key)
        except ApiError as error:
            log.warning("token renewal failed", pod=pod.metadata.key, error=str(error))
        except Exception:
            log.exception("token renewal failed", pod=pod.metadata.key)
        else:
            return True
        return False

    async def _request(self, pod: Pod, key: TokenKey) -> Token:
        """Ask for a token. Raises ApiError."""
        meta = pod.metadata
        spec = TokenRequestSpec(
            audiences=(key.audience,) if key.audience else (),
            expiration_seconds=key.expiration_seconds,
            bound_object_ref=BoundObjectReference(
                api_version="v1", kind="Pod", name=meta.name, uid=meta.uid
            ),
        )
        request = TokenRequest(
            api_version="authentication.k8s.io/v1",
            kind="TokenRequest",
            metadata=ObjectMeta(uid=key.service_account_uid),
            spec=spec,
        )
        async with self._lookups.share(meta.namespace):
            answer = await ask(
                lambda: self._api.create(
                    SERVICE_ACCOUNTS,
                    request,
                    meta.namespace,
                    name=pod.spec.service_account_name,
                    subresource="token",
                    answer_type=TokenRequest,
                )
            )
        return self._token(answer)

    def _token(self, answer: TokenRequest) -> Token:
        life = answer.spec.expiration_seconds or _DEFAULT_LIFE_SECONDS
        expires_at = answer.status.expiration_timestamp
        expires_at_ns = (
            expires_at.ns if expires_at is not None else self._clock.now_ns() + life * _SECOND_NS
        )
        jitter = random.uniform(0, _JITTER_SECONDS)  # noqa: S311 - it only spreads load
        return Token(
            text=answer.status.token,
            renew_at_ns=renewal_time_ns(expires_at_ns, life, jitter),
            expires_at_ns=expires_at_ns,
        )


@define(eq=False)
class _Entry:
    """One token in use; `next_attempt` is when its renewal may be asked for, in trio's time."""

    token: Token | None = None
    lock: trio.Lock = field(factory=trio.Lock)
    next_attempt: float = -math.inf


@define(eq=False)
class _PodTokens:
    """The tokens of one pod, and those that wait for their renewal, the first one first."""

    entries: dict[TokenKey, _Entry] = field(factory=dict)
    due: deque[TokenKey] = field(factory=deque)
    are_being_renewed: bool = False
