"""End-to-end tests run on what was asked for, or say why not."""

import pytest

from lab import LabError
from tests.e2e.provider import chosen_provider, is_docker_in_guest


@pytest.mark.parametrize(
    ("asked", "agent", "has_kind", "expected"),
    [
        ("", "", False, "local"),
        ("", "", True, "kind"),
        ("any", "", True, "kind"),
        ("", "go", True, "local"),
        ("local", "", True, "local"),
        ("local", "go", True, "local"),
        ("guest", "", True, "guest"),
        ("kind", "", False, "kind"),
    ],
)
def test_the_provider_is_the_one_that_was_asked_for_or_what_there_is(
    asked: str, agent: str, has_kind: bool, expected: str
) -> None:
    environment = {"TRIO_KUBELET_E2E": asked, "TRIO_KUBELET_E2E_AGENT": agent}
    assert chosen_provider(environment, has_kind=lambda: has_kind) == expected


@pytest.mark.parametrize(
    ("asked", "agent", "reason"),
    [
        ("knid", "", "there are local, guest and kind"),
        ("", "Go", "there is go"),
        ("kind", "go", "not kind"),
        ("guest", "go", "not guest"),
    ],
)
def test_what_there_is_not_is_no_reason_to_try_something_else(
    asked: str, agent: str, reason: str
) -> None:
    environment = {"TRIO_KUBELET_E2E": asked, "TRIO_KUBELET_E2E_AGENT": agent}
    with pytest.raises(LabError, match=reason):
        chosen_provider(environment, has_kind=lambda: True)


def test_docker_is_in_a_machine_when_that_is_asked_for_and_nowhere_else() -> None:
    assert is_docker_in_guest({"TRIO_KUBELET_KIND_DOCKER": "guest"})
    assert not is_docker_in_guest({"TRIO_KUBELET_KIND_DOCKER": ""})
    with pytest.raises(LabError, match="there is guest"):
        is_docker_in_guest({"TRIO_KUBELET_KIND_DOCKER": "gest"})
