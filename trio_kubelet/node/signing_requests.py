"""Requests for certificates, once the API server has them: approved and signed, or not.

A request is followed until its certificate is there. One that was denied, has failed, or is gone
never gets any.
"""

import trio
from attrs import define, field

from trio_kubelet.k8s import (
    CERTIFICATE_SIGNING_REQUESTS,
    CertificateSigningRequest,
    CertificateSigningRequestStatus,
)
from trio_kubelet.k8s.client import Api, ListSynced, ObjectRemoved, Selection, WatchEvent, reflect

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"


class RequestRefusedError(Exception):
    """A request was denied, or its signer could not do what it asked for."""


class RequestGoneError(Exception):
    """A request was deleted before it had a certificate."""


async def wait_for_certificate(api: Api, request: CertificateSigningRequest) -> bytes:
    """Return the chain that is issued for a request, in PEM, as soon as there is one.

    Raises RequestRefusedError and RequestGoneError. An API server that is away is waited for.
    """
    waiting = _Waiting(request.metadata.name, request.metadata.uid)
    selection = Selection(fields=f"metadata.name={request.metadata.name}")
    with waiting.scope:
        await reflect(api, CERTIFICATE_SIGNING_REQUESTS, waiting.on_event, selection)
    return waiting.result()


@define
class _Waiting:
    """The news of a request. `scope` is cancelled when there is nothing to wait for."""

    name: str
    uid: str
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    _certificate: bytes = b""
    _problem: Exception | None = None
    _was_seen: bool = False

    def result(self) -> bytes:
        """The certificate; raises what came in its place."""
        if self._problem is not None:
            raise self._problem
        return self._certificate

    async def on_event(self, event: WatchEvent[CertificateSigningRequest]) -> None:
        """Take note of a version of the request."""
        await trio.lowlevel.checkpoint()
        if isinstance(event, ListSynced):
            is_gone = not self._was_seen
        else:
            self._was_seen = True
            is_gone = isinstance(event, ObjectRemoved) or event.object.metadata.uid != self.uid
        if is_gone:
            self._problem = RequestGoneError(
                f"the certificate signing request {self.name} was deleted"
            )
        elif not isinstance(event, ListSynced):
            self._take(event.object.status)
        if self._problem is not None or self._certificate:
            self.scope.cancel()

    def _take(self, status: CertificateSigningRequestStatus) -> None:
        conditions = {condition.type: condition for condition in status.conditions}
        for kind, words in (("Denied", "is denied"), ("Failed", "failed")):
            refusal = conditions.get(kind)
            if refusal is not None:
                self._problem = RequestRefusedError(
                    f"certificate signing request {self.name} {words}, reason: {refusal.reason}, "
                    f"message: {refusal.message}"
                )
                return
        if "Approved" in conditions:
            self._certificate = status.certificate
