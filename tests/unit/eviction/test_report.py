"""What operators are told of evictions."""

from typing import Any

from click.testing import CliRunner

from tests.unit.eviction.candidates import MI, pod, stats, using
from trio_kubelet.cli.evictions import evictions_table, signals_table
from trio_kubelet.config.eviction import Signal, ThresholdValue
from trio_kubelet.eviction.observations import Observations, Observed
from trio_kubelet.eviction.pressure import Assessment, assess
from trio_kubelet.eviction.ranking import Candidate
from trio_kubelet.eviction.report import MOST_PODS, signal_reports
from trio_kubelet.eviction.thresholds import Threshold

HARD = Threshold(signal=Signal.MEMORY, value=ThresholdValue.parse("100Mi"))
RECORD: dict[str, Any] = {
    "at": "2026-01-01T00:00:00Z",
    "namespace": "ns",
    "name": "[bold]gone",
    "cause": "memory.available",
    "message": "The node was low on resource: memory. ",
    "is_open": True,
}


def report(candidates: list[Candidate]) -> list[dict[str, Any]]:
    amounts = {
        Signal.PIDS: Observed(available=9, capacity=10),
        Signal.MEMORY: Observed(available=50 * MI, capacity=200 * MI),
    }
    observed = Observations(at=0, signals=amounts)
    assessment = assess(Assessment(), (HARD,), observed, 0)
    return [dict(each) for each in signal_reports((HARD,), assessment, candidates)]


def printed(table: object) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_each_signal_has_its_pods_in_order() -> None:
    critical = Candidate(pod=pod("critical", priority=2_000_000_000), stats=stats("critical"))
    memory, pids = report([using("a", 5, "9Mi"), using("b", 7), critical, Candidate(pod=pod("c"))])
    assert (memory["signal"], memory["available"], memory["capacity"]) == (
        "memory.available",
        "50Mi",
        "200Mi",
    )
    assert memory["thresholds"] == [
        {
            "value": "100Mi",
            "amount": "100Mi",
            "kind": "hard",
            "graceSeconds": 0.0,
            "crossed": True,
            "met": True,
        }
    ]
    assert [(each["name"], each["used"], each["requested"]) for each in memory["pods"]] == [
        ("b", "7Mi", "0"),
        ("a", "5Mi", "9Mi"),
        ("c", None, None),
    ]
    assert memory["neverEvicted"] == 1
    assert (pids["signal"], pids["thresholds"]) == ("pid.available", [])


def test_many_pods_are_counted_and_not_listed() -> None:
    memory, _ = report([using(f"p{number}", 1) for number in range(MOST_PODS + 3)])
    assert (len(memory["pods"]), memory["morePods"]) == (MOST_PODS, 3)
    shown = printed(signals_table([memory]))
    assert "ns/p0 (1Mi of 0), ns/p1 (1Mi of 0)" in shown
    assert f"and {MOST_PODS - 2} more" in shown


def test_a_table_for_people() -> None:
    lines = printed(signals_table(report([using("a", 5, "9Mi")]))).splitlines()
    assert lines[0].split() == ["SIGNAL", "AVAILABLE", "THRESHOLDS", "NEXT"]
    assert "hard 100Mi met" in lines[1]
    assert "ns/a (5Mi of 9Mi)" in lines[1]


def test_evictions_say_when_who_and_why() -> None:
    shown = printed(evictions_table([RECORD, {**RECORD, "is_open": False}]))
    assert "ns/[bold]gone (ending)" in shown
    assert "The node was low on resource: memory." in shown


def test_the_command_says_what_to_do_where_no_agent_runs(tmp_path: Any) -> None:
    from trio_kubelet.cli.evictions import evictions

    result = CliRunner().invoke(evictions, ["--root-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "no agent runs here" in result.output
