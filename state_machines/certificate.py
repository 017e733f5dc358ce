# ruff: noqa: E501 - a row of a table is one line
"""The life of a certificate that a cluster signs for the node, and signs again before it expires.

Theory of operation
===================

There are two: the client's, with which the node asks the API server, and the one that its own
port shows. Each is always in one of these states:

    Nameless   nobody knows yet for which names it could be (the port's, before the node has an address)
    Current    there is one that is good, for the right names, and its rotation is not due
    Due        another one is to be requested now
    Requested  the API server has a request; somebody has to approve and to sign it
    BackOff    the last request came to nothing; the next one is made a little later

A rotation is due at a random moment between 70 and 90 percent of a certificate's life. The old
certificate stays in use until there is a new one: nothing in this table takes it away. A request
that came to nothing is never waited for again, and each request has a key of its own, so no key
is used longer than its certificate.
"""

from dataclasses import dataclass
from enum import StrEnum

from state_machines.backoff import BackoffPolicy
from state_machines.machine import Row, Start, StateMachine

REQUEST_BACKOFF = BackoffPolicy(initial_seconds=2.0, cap_seconds=32.0, jitter=0.1)

EARLIEST_SHARE, LATEST_SHARE = 0.7, 0.9
"""The parts of a certificate's life after which its rotation is due, at the soonest and the latest."""


class CertificateState(StrEnum):
    """States of a certificate that is kept up to date."""

    NAMELESS = "Nameless"
    CURRENT = "Current"
    DUE = "Due"
    REQUESTED = "Requested"
    BACK_OFF = "BackOff"


class CertificateEvent(StrEnum):
    """Looks at the certificate, and what becomes of a request."""

    EXAMINED = "Examined"
    """It was compared with the clock and with the names that it should have."""
    SUBMITTED = "Submitted"
    """The API server has taken a request."""
    SUBMIT_FAILED = "SubmitFailed"
    """No request was made: the API server refused it, was away, or there are no credentials."""
    ISSUED = "Issued"
    """The signer has made a certificate, and it is in use; the disk may take it later."""
    REFUSED = "Refused"
    """The request was denied or has failed, or its certificate cannot be used."""
    ABANDONED = "Abandoned"
    """The request is gone, or nobody has answered it for too long."""
    NAMES_CHANGED = "NamesChanged"
    """The certificate should be for other names than were requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateEvidence:
    """The look at a certificate, as evidence for `Examined` and `Issued`.

    `named` is True if it is known which names it should have, `satisfies` if there is one that is
    good now and has them, `due` if its rotation is.
    """

    named: bool
    satisfies: bool
    due: bool


def has_no_names(evidence: CertificateEvidence) -> bool:
    """True if nothing could be requested."""
    return not evidence.named


def is_good(evidence: CertificateEvidence) -> bool:
    """True if the certificate does, and for some time to come."""
    return evidence.satisfies and not evidence.due


def does(evidence: CertificateEvidence) -> bool:
    """True if the certificate is the one that was asked for."""
    return evidence.satisfies


def rotation_share(chance: float) -> float:
    """Return the part of a certificate's life after which it is rotated; `chance` is in [0, 1]."""
    return EARLIEST_SHARE + (LATEST_SHARE - EARLIEST_SHARE) * chance


S, E = CertificateState, CertificateEvent

# fmt: off
CERTIFICATE: StateMachine[CertificateState, CertificateEvent, CertificateEvidence] = StateMachine(
    name="certificate",
    starts=(
        Start(S.NAMELESS, "nothing was looked at yet"),
    ),
    rows=(
        Row(S.NAMELESS,  E.EXAMINED,      S.NAMELESS,  "the node has no address yet", has_no_names),
        Row(S.NAMELESS,  E.EXAMINED,      S.CURRENT,   "an earlier agent has left a good one", is_good),
        Row(S.NAMELESS,  E.EXAMINED,      S.DUE,       "there is none, or not for long"),

        Row(S.CURRENT,   E.EXAMINED,      S.NAMELESS,  "the node has lost its addresses; what it has stays in use", has_no_names),
        Row(S.CURRENT,   E.EXAMINED,      S.CURRENT,   "its rotation is not due", is_good),
        Row(S.CURRENT,   E.EXAMINED,      S.DUE,       "most of its life is over, or it lacks a name"),

        Row(S.DUE,       E.SUBMITTED,     S.REQUESTED, "others have to act now"),
        Row(S.DUE,       E.SUBMIT_FAILED, S.BACK_OFF,  "the API server is left in peace for a while"),

        Row(S.REQUESTED, E.ISSUED,        S.CURRENT,   "it is in use from now on", does),
        Row(S.REQUESTED, E.ISSUED,        S.BACK_OFF,  "the signer left out what was asked for, and would do so again at once"),
        Row(S.REQUESTED, E.REFUSED,       S.BACK_OFF,  "who denied it may think better of the next one"),
        Row(S.REQUESTED, E.ABANDONED,     S.BACK_OFF,  "an answer to it would come too late: a new request has a new key"),
        Row(S.REQUESTED, E.NAMES_CHANGED, S.BACK_OFF,  "nobody needs what it asks for any more, and they may change again"),

        Row(S.BACK_OFF,  E.EXAMINED,      S.NAMELESS,  "there is nothing to ask for any more", has_no_names),
        Row(S.BACK_OFF,  E.EXAMINED,      S.CURRENT,   "somebody else brought a good one, or the names are the old ones again", is_good),
        Row(S.BACK_OFF,  E.EXAMINED,      S.DUE,       "waited long enough"),
    ),
)
# fmt: on
