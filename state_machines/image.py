# ruff: noqa: E501 - a row of a table is one line
"""The life of an image for one container that is to be made.

Theory of operation
===================

Before a container is made, its image is looked for. What is found, and the pull policy, decide
where it goes:

    Unchecked  not looked for yet
    Pulling    a pull is under way or waits for its turn
    BackOff    the last pull failed; the next one is made when the back-off is over
    Missing    not there (or not for this pod's credentials), and the policy forbids to pull
    Present    the container can be made
    Invalid    the name cannot be read as that of an image

Present and Invalid end it: a container that is restarted, or gets another image, begins anew,
so that the policy Always pulls before each start.

BackOff and Missing are looked at again with every sync: somebody else may have brought the
image, and then there is nothing to wait for. A pull that is cancelled (its pod ends, nothing
moved for too long) may still have worked at the runtime, so it is looked for again.

`ErrImagePull` is what the status shows when a pull has just failed, `ImagePullBackOff` when a
sync finds that it must wait: both are BackOff here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from state_machines.backoff import BackoffPolicy
from state_machines.machine import Row, Start, StateMachine

IMAGE_BACKOFF = BackoffPolicy(initial_seconds=10.0, cap_seconds=300.0, forget_after_seconds=600.0)


class ImageState(StrEnum):
    """States on a container's way to its image."""

    UNCHECKED = "Unchecked"
    PULLING = "Pulling"
    BACK_OFF = "BackOff"
    MISSING = "Missing"
    PRESENT = "Present"
    INVALID = "Invalid"


class ImageEvent(StrEnum):
    """Events on the way to an image."""

    LOOKED = "Looked"
    """The runtime said whether it has the image."""
    LOOK_FAILED = "LookFailed"
    """The runtime could not say."""
    NAME_REFUSED = "NameRefused"
    """The name is not that of an image."""
    PULLED = "Pulled"
    """The pull worked."""
    PULL_FAILED = "PullFailed"
    """The registry or the runtime refused, or nothing moved for too long."""
    PULL_CANCELLED = "PullCancelled"
    """Nobody waits for the pull any more."""
    RETRY_DUE = "RetryDue"
    """The back-off is over."""


class PullPolicy(StrEnum):
    """imagePullPolicy of a container."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageEvidence:
    """The runtime's answer, as evidence for `ImageEvent.LOOKED`.

    `allowed` is False if the image is there, but was pulled with credentials that this pod has
    not shown (gate KubeletEnsureSecretPulledImages). `in_back_off` is True if a pull for another
    container of the pod has failed too short a time ago.
    """

    policy: PullPolicy
    present: bool
    allowed: bool = True
    in_back_off: bool = False


def needs_pull(evidence: ImageEvidence) -> bool:
    """True if the policy asks for a pull."""
    if evidence.policy is PullPolicy.IF_NOT_PRESENT:
        return not (evidence.present and evidence.allowed)
    return evidence.policy is PullPolicy.ALWAYS


def must_pull(evidence: ImageEvidence) -> bool:
    """True if the policy asks for a pull, and nothing is to be waited for."""
    return needs_pull(evidence) and not evidence.in_back_off


def must_wait(evidence: ImageEvidence) -> bool:
    """True if the policy asks for a pull that has to wait."""
    return needs_pull(evidence) and evidence.in_back_off


def is_usable(evidence: ImageEvidence) -> bool:
    """True if the container can be made from what is there."""
    return evidence.present and evidence.allowed and not needs_pull(evidence)


def must_not_pull(evidence: ImageEvidence) -> bool:
    """True if the image cannot be used and the policy forbids to pull it."""
    return not needs_pull(evidence) and not is_usable(evidence)


S, E = ImageState, ImageEvent

# fmt: off
IMAGE: StateMachine[ImageState, ImageEvent, ImageEvidence] = StateMachine(
    name="image",
    starts=(
        Start(S.UNCHECKED, "a container is to be made"),
    ),
    terminal=frozenset({S.PRESENT, S.INVALID}),
    rows=(
        Row(S.UNCHECKED, E.LOOKED,         S.PULLING,   "Always, or it is not there, or not for this pod", must_pull),
        Row(S.UNCHECKED, E.LOOKED,         S.BACK_OFF,  "a pull for another container of the pod has failed", must_wait),
        Row(S.UNCHECKED, E.LOOKED,         S.PRESENT,   "it is there and the policy asks for no more", is_usable),
        Row(S.UNCHECKED, E.LOOKED,         S.MISSING,   "the policy is Never", must_not_pull),
        Row(S.UNCHECKED, E.LOOK_FAILED,    S.UNCHECKED, "the next sync asks again"),
        Row(S.UNCHECKED, E.NAME_REFUSED,   S.INVALID,   "no look and no pull can mend a name"),

        Row(S.PULLING,   E.PULLED,         S.PRESENT,   "the runtime has it and says under which id"),
        Row(S.PULLING,   E.PULL_FAILED,    S.BACK_OFF,  "a registry in trouble is left in peace for a while"),
        Row(S.PULLING,   E.PULL_CANCELLED, S.UNCHECKED, "it may have worked all the same: who asks next, looks first"),

        Row(S.BACK_OFF,  E.RETRY_DUE,      S.PULLING,   "waited long enough"),
        Row(S.BACK_OFF,  E.LOOKED,         S.PRESENT,   "somebody else brought it", is_usable),
        Row(S.BACK_OFF,  E.LOOKED,         S.BACK_OFF,  "a sync does not shorten the wait"),
        Row(S.BACK_OFF,  E.LOOK_FAILED,    S.BACK_OFF,  "the wait goes on"),

        Row(S.MISSING,   E.LOOKED,         S.PRESENT,   "somebody else brought it", is_usable),
        Row(S.MISSING,   E.LOOKED,         S.MISSING,   "only somebody else can bring it"),
        Row(S.MISSING,   E.LOOK_FAILED,    S.MISSING,   "the next sync asks again"),
    ),
)
# fmt: on

WAITING_REASONS: Mapping[ImageState, str] = {
    S.BACK_OFF: "ImagePullBackOff",
    S.MISSING: "ErrImageNeverPull",
    S.INVALID: "InvalidImageName",
}
"""The reason that the status of a waiting container shows for its image's state."""


def image_tag(image: str) -> str:
    """Return the tag that an image name asks for: `latest` unless it has a tag or a digest.

    Empty if there is only a digest. A colon before the last slash is that of a registry's port.
    """
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag or ("" if digest else "latest")


def default_pull_policy(image: str) -> PullPolicy:
    """Return the policy of a container that names none: a tag that moves is always pulled."""
    return PullPolicy.ALWAYS if image_tag(image) == "latest" else PullPolicy.IF_NOT_PRESENT
