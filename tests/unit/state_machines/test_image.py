import pytest

from state_machines.image import (
    IMAGE,
    WAITING_REASONS,
    ImageEvent,
    ImageEvidence,
    ImageState,
    PullPolicy,
    default_pull_policy,
    image_tag,
    must_pull,
)
from state_machines.machine import IllegalTransition

ALWAYS, IF_NOT_PRESENT, NEVER = PullPolicy
DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("policy", "present", "allowed", "state"),
    [
        (ALWAYS, False, True, ImageState.PULLING),
        (ALWAYS, True, True, ImageState.PULLING),
        (IF_NOT_PRESENT, False, True, ImageState.PULLING),
        (IF_NOT_PRESENT, True, True, ImageState.PRESENT),
        (IF_NOT_PRESENT, True, False, ImageState.PULLING),
        (NEVER, False, True, ImageState.MISSING),
        (NEVER, True, True, ImageState.PRESENT),
        (NEVER, True, False, ImageState.MISSING),
    ],
)
def test_the_pull_policy_decides_after_the_first_look(
    policy: PullPolicy, present: bool, allowed: bool, state: ImageState
) -> None:
    evidence = ImageEvidence(policy=policy, present=present, allowed=allowed)
    assert IMAGE.step(ImageState.UNCHECKED, ImageEvent.LOOKED, evidence) is state
    assert must_pull(evidence) is (state is ImageState.PULLING)


@pytest.mark.parametrize(
    ("policy", "present", "state"),
    [
        (ALWAYS, True, ImageState.BACK_OFF),
        (IF_NOT_PRESENT, False, ImageState.BACK_OFF),
        (IF_NOT_PRESENT, True, ImageState.PRESENT),
        (NEVER, False, ImageState.MISSING),
    ],
)
def test_what_another_container_could_not_pull_is_not_pulled_at_once(
    policy: PullPolicy, present: bool, state: ImageState
) -> None:
    evidence = ImageEvidence(policy=policy, present=present, in_back_off=True)
    assert IMAGE.step(ImageState.UNCHECKED, ImageEvent.LOOKED, evidence) is state


def test_nothing_is_decided_without_looking() -> None:
    with pytest.raises(IllegalTransition):
        IMAGE.step(ImageState.UNCHECKED, ImageEvent.LOOKED)


@pytest.mark.parametrize("state", [ImageState.BACK_OFF, ImageState.MISSING])
def test_an_image_that_somebody_else_brought_ends_the_wait(state: ImageState) -> None:
    found = ImageEvidence(policy=NEVER, present=True)
    not_found = ImageEvidence(policy=NEVER, present=False)
    assert IMAGE.step(state, ImageEvent.LOOKED, found) is ImageState.PRESENT
    assert IMAGE.step(state, ImageEvent.LOOKED, not_found) is state


def test_policy_always_waits_out_the_back_off_although_an_image_is_there() -> None:
    there = ImageEvidence(policy=ALWAYS, present=True)
    assert IMAGE.step(ImageState.BACK_OFF, ImageEvent.LOOKED, there) is ImageState.BACK_OFF


def test_a_failed_pull_is_made_again_after_the_back_off() -> None:
    state = IMAGE.step(ImageState.PULLING, ImageEvent.PULL_FAILED)
    assert state is ImageState.BACK_OFF
    assert IMAGE.step(state, ImageEvent.RETRY_DUE) is ImageState.PULLING


def test_a_cancelled_pull_is_looked_for_again() -> None:
    assert IMAGE.step(ImageState.PULLING, ImageEvent.PULL_CANCELLED) is ImageState.UNCHECKED


def test_waiting_reasons_are_those_of_the_states_that_wait_for_an_image() -> None:
    assert {str(state): reason for state, reason in WAITING_REASONS.items()} == {
        "BackOff": "ImagePullBackOff",
        "Missing": "ErrImageNeverPull",
        "Invalid": "InvalidImageName",
    }


@pytest.mark.parametrize(
    ("image", "tag", "policy"),
    [
        ("busybox", "latest", ALWAYS),
        ("busybox:latest", "latest", ALWAYS),
        ("busybox:1.36", "1.36", IF_NOT_PRESENT),
        ("registry.example:5000/team/web", "latest", ALWAYS),
        ("registry.example:5000/team/web:2", "2", IF_NOT_PRESENT),
        (f"busybox@{DIGEST}", "", IF_NOT_PRESENT),
        (f"registry.example:5000/web:2@{DIGEST}", "2", IF_NOT_PRESENT),
        (f"busybox:latest@{DIGEST}", "latest", ALWAYS),
    ],
)
def test_only_a_tag_that_moves_is_always_pulled(image: str, tag: str, policy: PullPolicy) -> None:
    assert image_tag(image) == tag
    assert default_pull_policy(image) is policy
