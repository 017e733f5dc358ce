"""Approver and signer of a cluster in memory, who do as they are told."""

from datetime import datetime, timedelta
from enum import Enum

import trio
from attrs import define, evolve, field

from tests.apiserver.server import ApiServer
from tests.unit.node.authority import Authority, edited
from trio_kubelet.k8s import (
    CERTIFICATE_SIGNING_REQUESTS,
    CertificateSigningRequest,
    CertificateSigningRequestCondition,
    CertificateSigningRequestStatus,
)
from trio_kubelet.node.certificates import utc


class Mood(Enum):
    """The ways to treat requests."""

    SIGN = "sign"
    DENY = "deny"
    IGNORE = "ignore"
    DELETE = "delete"


@define(eq=False)
class Signer:
    """Answers new requests after `delay_seconds`; certificates are good for `life`."""

    server: ApiServer
    life: timedelta = timedelta(days=365)
    mood: Mood = Mood.SIGN
    delay_seconds: float = 1.0
    backdated: timedelta = timedelta()
    authority: Authority = field(factory=Authority)
    removes_old: bool = False
    """Requests that were answered, or ignored, are deleted when the next one comes."""
    damage: tuple[bytes, bytes] | None = None
    """Bytes of a certificate, and those that come in their place."""
    ignored: set[str] = field(factory=set)
    signed: int = 0

    async def run(self) -> None:
        """Answer each request once, and forget it after that."""
        while True:
            await self.server.until(self._open, float("inf"))
            if self.removes_old:
                self._remove_old()
            await trio.sleep(self.delay_seconds)
            for request in self._open():
                self.answer(request)

    def answer(self, request: CertificateSigningRequest) -> None:
        """Do with a request as the mood is."""
        name = request.metadata.name
        match self.mood:
            case Mood.SIGN:
                now = self._now()
                chain = self.authority.sign(
                    request.spec.request, begin=now - self.backdated, until=now + self.life
                )
                if self.damage is not None:
                    chain = edited(chain, *self.damage)
                self._decide(request, "Approved", chain)
                self.signed += 1
            case Mood.DENY:
                self._decide(request, "Denied")
            case Mood.DELETE:
                self.server.delete(CERTIFICATE_SIGNING_REQUESTS, name)
            case Mood.IGNORE:
                self.ignored.add(name)

    def _remove_old(self) -> None:
        fresh = {request.metadata.name for request in self._open()}
        for request in self.server.all(CERTIFICATE_SIGNING_REQUESTS):
            if request.metadata.name not in fresh:
                self.server.delete(CERTIFICATE_SIGNING_REQUESTS, request.metadata.name)
        self.ignored.clear()

    def _decide(self, request: CertificateSigningRequest, kind: str, chain: bytes = b"") -> None:
        condition = CertificateSigningRequestCondition(
            type=kind, status="True", reason="ByHand", message="because"
        )
        status = CertificateSigningRequestStatus(conditions=(condition,), certificate=chain)
        self.server.update(
            CERTIFICATE_SIGNING_REQUESTS, evolve(request, status=status), subresource="status"
        )

    def _open(self) -> tuple[CertificateSigningRequest, ...]:
        requests = self.server.all(CERTIFICATE_SIGNING_REQUESTS)
        return tuple(
            request
            for request in requests
            if not request.status.conditions and request.metadata.name not in self.ignored
        )

    def _now(self) -> datetime:
        return utc(self.server.clock.now_ns())
