"""What is missing is no reason to skip a test where all must run."""

from collections.abc import Mapping

import pytest

from lab import UnavailableError
from tests.missing import all_must_run, do_without


@pytest.mark.parametrize(
    ("environment", "must"),
    [
        ({}, False),
        ({"CI": ""}, False),
        ({"CI": "false"}, False),
        ({"TRIO_KUBELET_E2E": "any"}, False),
        ({"CI": "true"}, True),
        ({"TRIO_KUBELET_E2E": "local"}, True),
    ],
)
def test_all_must_run_in_ci(environment: Mapping[str, str], must: bool) -> None:
    assert all_must_run(environment) is must


@pytest.mark.parametrize(("ci", "asked_for"), [("true", False), ("", True)])
def test_what_is_missing_fails_in_ci_or_if_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, ci: str, asked_for: bool
) -> None:
    monkeypatch.delenv("TRIO_KUBELET_E2E", raising=False)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(UnavailableError, match="no containerd"):
        do_without("no containerd", asked_for=asked_for)


def test_what_is_missing_elsewhere_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIO_KUBELET_E2E", raising=False)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no containerd"):
        do_without("no containerd")
