"""The rules of a certificate that is rotated."""

import pytest

from state_machines.certificate import (
    CERTIFICATE,
    CertificateEvent,
    CertificateEvidence,
    CertificateState,
    rotation_share,
)
from state_machines.machine import IllegalTransition

NAMELESS, CURRENT, DUE, REQUESTED, BACK_OFF = CertificateState
EXAMINED = CertificateEvent.EXAMINED
GOOD = CertificateEvidence(named=True, satisfies=True, due=False)
OLD = CertificateEvidence(named=True, satisfies=True, due=True)
NONE = CertificateEvidence(named=True, satisfies=False, due=False)
NO_NAMES = CertificateEvidence(named=False, satisfies=False, due=True)


@pytest.mark.parametrize(
    ("evidence", "state"), [(GOOD, CURRENT), (OLD, DUE), (NONE, DUE), (NO_NAMES, NAMELESS)]
)
@pytest.mark.parametrize("before", [NAMELESS, CURRENT, BACK_OFF])
def test_what_is_seen_decides_whatever_was_before(
    before: CertificateState, evidence: CertificateEvidence, state: CertificateState
) -> None:
    assert CERTIFICATE.step(before, EXAMINED, evidence) is state


def test_nothing_is_looked_at_while_a_request_is_made() -> None:
    for state in (DUE, REQUESTED):
        with pytest.raises(IllegalTransition):
            CERTIFICATE.step(state, EXAMINED, GOOD)


@pytest.mark.parametrize("event", [CertificateEvent.REFUSED, CertificateEvent.ABANDONED])
def test_a_request_that_came_to_nothing_is_followed_by_a_pause(event: CertificateEvent) -> None:
    assert CERTIFICATE.step(REQUESTED, event) is BACK_OFF


def test_a_certificate_that_lacks_what_was_asked_for_is_not_asked_for_at_once() -> None:
    assert CERTIFICATE.step(REQUESTED, CertificateEvent.ISSUED, NONE) is BACK_OFF
    assert CERTIFICATE.step(REQUESTED, CertificateEvent.ISSUED, OLD) is CURRENT


def test_a_rotation_is_due_between_70_and_90_percent_of_a_life() -> None:
    assert [rotation_share(chance) for chance in (0.0, 0.5, 1.0)] == pytest.approx([0.7, 0.8, 0.9])
