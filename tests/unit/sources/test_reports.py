import math

import pytest
import structlog

from trio_kubelet.sources.manifest_source import SAID_AT_ONCE, ManifestReports
from trio_kubelet.tasks.clock import SystemClock
from trio_kubelet.telemetry import Journal

BAD = {"/m/a": ("digest", ("spec: Required value",))}


@pytest.fixture
def journal() -> Journal:
    return Journal(SystemClock())


def told(journal: Journal) -> list[tuple[str, str, str]]:
    return [(entry.key, entry.event, entry.cause) for entry in journal.entries()]


def test_a_problem_is_told_when_it_has_settled_and_only_once(journal: Journal) -> None:
    reports = ManifestReports(journal)
    assert reports.update(BAD, now=10.0) == 10.5
    assert told(journal) == []
    assert reports.update(BAD, now=10.2) == 10.5
    assert reports.update(BAD, now=10.5) == math.inf
    assert reports.update(BAD, now=30.0) == math.inf
    assert told(journal) == [("/m/a", "Rejected", "spec: Required value")]


def test_a_file_that_is_just_being_written_is_not_told(journal: Journal) -> None:
    reports = ManifestReports(journal)
    reports.update(BAD, now=0.0)
    assert reports.update({}, now=0.1) == math.inf
    reports.update(BAD, now=1.0)
    assert told(journal) == []


def test_a_file_that_goes_on_being_written_is_told_when_it_stops(journal: Journal) -> None:
    reports = ManifestReports(journal)
    for tenth in range(30):
        complaint = {"/m/a": (f"digest {tenth}", ("there is no pod in it",))}
        reports.update(complaint, now=tenth / 10)
    assert told(journal) == []
    reports.update(complaint, now=4.0)
    assert len(told(journal)) == 1


def test_a_changed_content_is_told_again_and_so_is_its_mending(journal: Journal) -> None:
    reports = ManifestReports(journal, settle_seconds=0.0)
    reports.update(BAD, now=0.0)
    reports.update({"/m/a": ("other digest", ("spec: Required value",))}, now=1.0)
    reports.update({}, now=2.0)
    assert [event for _, event, _ in told(journal)] == ["Rejected", "Rejected", "Mended"]


def test_a_long_list_of_problems_is_cut(journal: Journal) -> None:
    reports = ManifestReports(journal, settle_seconds=0.0)
    reports.update({"/m/a": ("d", tuple(map(str, range(12))))}, now=0.0)
    assert told(journal)[0][2] == "0; 1; 2; 3; 4; 5; 6; 7; 8; 9; and 2 more"


def test_passwords_in_urls_are_not_shown(journal: Journal) -> None:
    url = "https://me:secret@host/pods"
    reports = ManifestReports(journal, settle_seconds=0.0)
    with structlog.testing.capture_logs() as logs:
        reports.update({url: ("", (f"{url} does not answer",))}, 0.0)
        reports.update({}, 1.0)
    shown = "https://<masked>@host/pods"
    assert told(journal) == [
        (shown, "Rejected", f"{shown} does not answer"),
        (shown, "Mended", ""),
    ]
    assert "secret" not in str(logs)


def test_thousands_of_bad_manifests_are_told_of_by_and_by(journal: Journal) -> None:
    reports = ManifestReports(journal, settle_seconds=0.0)
    bad = {f"/m/{number}": ("digest", ("wrong",)) for number in range(2 * SAID_AT_ONCE + 1)}
    rejected, now = list[int](), 0.0
    while now < math.inf:
        before = len(list(journal.entries()))
        now = reports.update(bad, now)
        rejected.append(len(list(journal.entries())) - before)
    assert rejected == [SAID_AT_ONCE, SAID_AT_ONCE, 1]
    mended, now = list[int](), 0.0
    while now < math.inf:
        before = len(list(journal.entries()))
        now = reports.update({}, now)
        mended.append(len(list(journal.entries())) - before)
    assert mended == [SAID_AT_ONCE, SAID_AT_ONCE, 1]
