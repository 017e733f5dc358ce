"""Keeps a certificate of the node good: asks for the next one before the present one expires.

`Rotation` is the task of one certificate and walks its table (`state_machines/certificate.py`).
What it knows are the pair in use, the names that it should have, and the time of day: the clock
that certificates are made for. It never sleeps for longer than an hour, because that clock goes on
while the machine sleeps, and may be set. Each request has a new key, which is on the disk only
with its certificate; a request that was not answered in a quarter of an hour is forgotten.
A pair that the disk does not take is in use all the same: it is written as soon as that can be
done, unless a newer one has replaced it.
"""

import math
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import structlog
import trio
from attrs import define, field, frozen

from state_machines.backoff import BackoffPolicy
from state_machines.certificate import (
    CERTIFICATE,
    REQUEST_BACKOFF,
    CertificateEvent,
    CertificateEvidence,
    CertificateState,
    rotation_share,
)
from trio_kubelet.k8s import (
    CERTIFICATE_SIGNING_REQUESTS,
    CertificateSigningRequest,
    CertificateSigningRequestSpec,
    ObjectMeta,
)
from trio_kubelet.k8s.client import Api, ApiError, KubeconfigError
from trio_kubelet.node.certificates import (
    CertificateNames,
    CertificateStore,
    ClientKey,
    ClientPair,
    issued_pair,
    key_usages,
    new_key,
    signing_request,
    utc,
)
from trio_kubelet.node.signing_requests import (
    RequestGoneError,
    RequestRefusedError,
    wait_for_certificate,
)
from trio_kubelet.tasks.callbacks import Callbacks
from trio_kubelet.tasks.clock import Clock
from trio_kubelet.tasks.retries import Retries
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("certificates")

ANSWER_SECONDS = 900.0
"""A request that nobody has answered by then is forgotten."""

LONGEST_SLEEP_SECONDS = 3600.0
NAMES_PAUSE_SECONDS = 30.0
"""The time from a request until the names are looked at again, if they change by then."""

SHORTEST_LIFE_SECONDS = 1.0
"""A certificate whose rotation was due when it was issued is kept for so long."""

WRITE_BACKOFF = BackoffPolicy(initial_seconds=2.0, cap_seconds=60.0, jitter=0.1)

S, E = CertificateState, CertificateEvent


@frozen
class CertificateKind:
    """A kind of certificates: its name in logs, its signer, what it is for."""

    name: str
    signer: str
    usage: str


def certificate_evidence(
    pair: ClientPair | None, names: CertificateNames | None, now: datetime, due_at: datetime
) -> CertificateEvidence:
    """The evidence about a pair that should have these names."""
    is_valid = pair is not None and pair.is_valid_at(now)
    satisfies = pair is not None and is_valid and (names is None or names.are_in(pair.chain[0]))
    return CertificateEvidence(named=names is not None, satisfies=satisfies, due=now >= due_at)


def rotation_time(pair: ClientPair, chance: float) -> datetime:
    """When a pair is to be rotated; `chance` is in [0, 1]."""
    return pair.not_before + (pair.not_after - pair.not_before) * rotation_share(chance)


def seconds_to_sleep(now: datetime, due_at: datetime) -> float:
    """The time until a certificate is looked at again, bounded for a clock that may be set."""
    seconds = (due_at - now).total_seconds()
    return max(SHORTEST_LIFE_SECONDS, min(LONGEST_SLEEP_SECONDS, seconds))


@define(kw_only=True, eq=False)
class Rotation:
    """The owner of one certificate.

    `names()` are those that it should have, None while they are not known. `asking(pair)` opens a
    client with the credentials that a request is made with; `pair` is the certificate in use, if
    it is good. `take()` is called when there is a new one, and again when one is on the disk that
    could not be written at first; it raises nothing.
    `on_rotated` tells of the seconds that a pair was good for before it was replaced.
    """

    kind: CertificateKind
    store: CertificateStore
    names: Callable[[], CertificateNames | None]
    asking: Callable[[ClientPair | None], AbstractAsyncContextManager[Api]]
    take: Callable[[], Awaitable[None]]
    clock: Clock
    pair: ClientPair | None = None
    ends_with_certificate: bool = False
    """Requests are made as the user of the certificate, and cannot be followed without it."""
    must_rotate: bool = False
    """The first pair is somebody else's: it is replaced at once."""
    state: CertificateState = field(init=False, default=S.NAMELESS)
    failures: int = field(init=False, default=0)
    """The requests that came to nothing."""
    on_rotated: Callbacks[[float]] = field(init=False, factory=Callbacks)
    chance: Callable[[], float] = random.random
    """Spreads the rotations of many nodes."""
    _due_at: datetime = field(init=False, default=datetime.max.replace(tzinfo=UTC))
    _wake: trio.Event = field(init=False, factory=trio.Event)
    _requested: CertificateNames | None = field(init=False, default=None)
    _requested_at: float = field(init=False, default=-math.inf)
    _answer: trio.CancelScope = field(init=False, factory=trio.CancelScope)
    _retries: Retries = field(init=False, factory=lambda: Retries(REQUEST_BACKOFF))
    _unwritten_since: datetime | None = field(init=False, default=None)
    """When the pair in use was issued, while it is not on the disk."""
    _write_at: float = field(init=False, default=math.inf)
    _write_retries: Retries = field(init=False, factory=lambda: Retries(WRITE_BACKOFF))

    def __attrs_post_init__(self) -> None:
        if self.pair is not None:
            self._due_at = self._now() if self.must_rotate else self._rotation_time(self.pair)

    def valid_pair(self) -> ClientPair | None:
        """The pair in use, if it is good now."""
        pair = self.pair
        return pair if pair is not None and pair.is_valid_at(self._now()) else None

    def unwritten_pem(self) -> bytes:
        """Chain and key in use, while they are not on the disk; else nothing."""
        if self.pair is None or self._unwritten_since is None:
            return b""
        return self.pair.pem

    def seconds_left(self) -> float:
        """The time until the certificate expires, negative after that; infinite without one."""
        if self.pair is None:
            return float("inf")
        return (self.pair.not_after - self._now()).total_seconds()

    def names_changed(self) -> None:
        """The names may be others than before: look at once."""
        if self.state is S.REQUESTED and self.names() != self._requested:
            self._answer.cancel()
        self._wake.set()

    async def run(self) -> None:
        """Keep the certificate good, forever. A request under way is forgotten when cancelled."""
        self.state = S.NAMELESS
        while True:
            self._wake = trio.Event()
            if trio.current_time() >= self._write_at and await self._write():
                await self.take()
            self._step(E.EXAMINED, self._evidence())
            if self.state is S.DUE:
                await self._request()
            if self.state is S.BACK_OFF:
                await self._retries.wait()
            elif self.state is not S.DUE:
                until = min(trio.current_time() + self._seconds_to_sleep(), self._write_at)
                with trio.move_on_at(until):
                    await self._wake.wait()
                    # Addresses that come and go are not requested each time.
                    await trio.sleep_until(self._requested_at + NAMES_PAUSE_SECONDS)

    def _seconds_to_sleep(self) -> float:
        if self.state is S.NAMELESS:
            return LONGEST_SLEEP_SECONDS
        return seconds_to_sleep(self._now(), self._due_at)

    async def _request(self) -> None:
        """Make a request, and wait until it was answered or came to nothing."""
        names = self.names()
        if names is None:
            self._step(E.SUBMIT_FAILED)
            return
        self._requested_at = trio.current_time()
        try:
            async with self.asking(self.valid_pair()) as api:
                await self._request_of(api, names)
        except (ApiError, KubeconfigError, OSError, ValueError) as error:
            self._failed(E.SUBMIT_FAILED, str(error))
        except RequestRefusedError as error:
            self._failed(E.REFUSED, str(error))
        except RequestGoneError as error:
            self._failed(E.ABANDONED, str(error))

    async def _request_of(self, api: Api, names: CertificateNames) -> None:
        """Make one request, and wait for what becomes of it."""
        key = new_key()
        request = await api.create(CERTIFICATE_SIGNING_REQUESTS, self._wanted(key, names))
        self._step(E.SUBMITTED)
        self._requested = names
        name = request.metadata.name
        log.info(
            "waiting for the certificate signing request to be approved",
            certificate=self.kind.name,
            request=name,
        )
        self._answer = trio.CancelScope(deadline=trio.current_time() + self._answer_seconds())
        if self.names() != names:  # They changed while the request was on its way.
            self._answer.cancel()
        chain = b""
        with self._answer:
            chain = await wait_for_certificate(api, request)
        if chain:
            await self._keep(chain, key)
        elif self.names() != names:
            self._step(E.NAMES_CHANGED)
        else:
            raise RequestGoneError(
                f"nobody has answered the certificate signing request {name} in time"
            )

    def _answer_seconds(self) -> float:
        if not self.ends_with_certificate or self.valid_pair() is None:
            return ANSWER_SECONDS
        return max(SHORTEST_LIFE_SECONDS, min(ANSWER_SECONDS, self.seconds_left()))

    def _wanted(self, key: ClientKey, names: CertificateNames) -> CertificateSigningRequest:
        return CertificateSigningRequest(
            metadata=ObjectMeta(generate_name="csr-"),
            spec=CertificateSigningRequestSpec(
                request=signing_request(key, names),
                signer_name=self.kind.signer,
                usages=key_usages(key, self.kind.usage),
            ),
        )

    async def _keep(self, chain: bytes, key: ClientKey) -> None:
        """Put what was issued into use, and on the disk."""
        try:
            pair = await run_in_thread(issued_pair, chain, key)
        except ValueError as error:
            raise RequestRefusedError(
                f"the certificate that was issued cannot be used: {error}"
            ) from error
        replaced, self.pair = self.pair, pair
        self._due_at = self._rotation_time(pair)
        self._step(E.ISSUED, self._evidence())
        if self.state is S.CURRENT:
            self._retries.reset()
        log.info(
            "certificate rotated",
            certificate=self.kind.name,
            expires=pair.not_after.isoformat(),
            rotation=self._due_at.isoformat(),
        )
        if replaced is not None:
            self.on_rotated.call((self._now() - replaced.not_before).total_seconds())
        self._unwritten_since, self._write_at = self._now(), trio.current_time()
        self._write_retries.reset()
        await self._write()
        await self.take()

    async def _write(self) -> bool:
        """Put the pair in use on the disk, or note when to try again; returns if it is there."""
        try:
            await run_in_thread(self.store.put, self.pair, self._unwritten_since)
        except OSError as error:
            self._write_at = trio.current_time() + self._write_retries.next_seconds()
            self._write_retries.warn(
                log,
                "certificate cannot be written, in use from memory, will retry",
                certificate=self.kind.name,
                path=str(self.store.current_path),
                error=str(error),
            )
            return False
        self._unwritten_since, self._write_at = None, math.inf
        log.info(
            "certificate written", certificate=self.kind.name, path=str(self.store.current_path)
        )
        return True

    def _failed(self, event: CertificateEvent, why: str) -> None:
        if self.state is S.DUE and event is not E.SUBMIT_FAILED:
            event = E.SUBMIT_FAILED
        elif self.state is S.REQUESTED and event is E.SUBMIT_FAILED:
            event = E.ABANDONED
        self._step(event)
        self.failures += 1
        self._retries.warn(
            log,
            "certificate request failed, will retry",
            certificate=self.kind.name,
            error=why,
            expires_in_seconds=None if self.pair is None else round(self.seconds_left()),
        )

    def _rotation_time(self, pair: ClientPair) -> datetime:
        return rotation_time(pair, self.chance())

    def _evidence(self) -> CertificateEvidence:
        return certificate_evidence(self.pair, self.names(), self._now(), self._due_at)

    def _step(self, event: CertificateEvent, evidence: CertificateEvidence | None = None) -> None:
        self.state = CERTIFICATE.step(self.state, event, evidence)

    def _now(self) -> datetime:
        return utc(self.clock.now_ns())
