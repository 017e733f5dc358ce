"""The report of evictions for operators: who would go next, and who has gone. On the own socket.

For each signal: what is available, the thresholds, and the pods in the order in which they would
be evicted, with what each uses of it, which is what its end would give back.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import asdict, define

from trio_kubelet.config.eviction import SIGNALS, Signal
from trio_kubelet.eviction.observations import amount_text
from trio_kubelet.eviction.pressure import Assessment, wanted_amount
from trio_kubelet.eviction.ranking import Candidate, claim, ranked
from trio_kubelet.eviction.records import EvictionRecord, EvictionRecords
from trio_kubelet.eviction.thresholds import Threshold, with_container_disk
from trio_kubelet.eviction.watch import PressureWatch
from trio_kubelet.k8s import Pod
from trio_kubelet.pod_source import is_critical, rfc3339_nanoseconds
from trio_kubelet.server import ADMIN, AnswerWriters, Request, Response, Route
from trio_kubelet.server.endpoints import json_response
from trio_kubelet.stats import StatsProvider
from trio_kubelet.stats.shared import ANY_AGE

PATH = "/debug/evictions"
MOST_PODS = 50
"""The pods that are told of at each signal."""

Json = Mapping[str, Any]


@define(kw_only=True)
class EvictionReporter:
    """Answers `/debug/evictions`."""

    _watch: PressureWatch
    _stats: StatsProvider
    _pods: Callable[[], Iterable[Pod]]
    _records: EvictionRecords
    _writers: AnswerWriters

    def routes(self) -> Sequence[Route]:
        """The route, for the agent's own socket."""
        return (Route("GET", PATH, self._show, ADMIN),)

    async def _show(self, _request: Request) -> Response:
        assessment = await self._watch.newer_than(float("-inf"))
        pods = tuple(self._pods())
        stats = await self._stats.usage_since(ANY_AGE, pods, disks=True)
        by_uid = {each.uid: each for each in stats.pods}
        candidates = [Candidate(pod=pod, stats=by_uid.get(pod.metadata.uid)) for pod in pods]
        # All pods are ranked once for each signal, which takes long where they are many.
        report = partial(signal_reports, self._watch.thresholds, assessment, candidates)
        signals = await self._writers.threads(PATH).run_sync(report)
        return json_response({"signals": signals, "evictions": list(_told(self._records))})


def signal_reports(
    thresholds: Iterable[Threshold], assessment: Assessment, candidates: Collection[Candidate]
) -> list[Json]:
    """A line for each signal that was measured, those with thresholds first."""
    by_signal: dict[Signal, list[Threshold]] = {}
    for each in with_container_disk(thresholds, assessment.observed.layout):
        by_signal.setdefault(each.signal, []).append(each)
    reports = [
        _signal_report(signal, by_signal.get(signal, ()), assessment, candidates)
        for signal in assessment.observed.signals
    ]
    return sorted(reports, key=lambda report: not report["thresholds"])


def _signal_report(
    signal: Signal,
    thresholds: Sequence[Threshold],
    assessment: Assessment,
    candidates: Iterable[Candidate],
) -> Json:
    amounts, layout = assessment.observed.signals[signal], assessment.observed.layout
    in_order = ranked(signal, candidates, layout)
    return {
        "signal": str(signal),
        "resource": SIGNALS[signal].resource,
        "available": amount_text(signal, amounts.available),
        "capacity": amount_text(signal, amounts.capacity),
        "thresholds": [
            {
                "value": each.value.text,
                "amount": amount_text(signal, wanted_amount(each, amounts.capacity)),
                "kind": "hard" if each.is_hard else "soft",
                "graceSeconds": each.grace_seconds,
                "crossed": each in assessment.crossed_since,
                "met": each in assessment.met,
            }
            for each in thresholds
        ],
        "pods": [
            {
                "namespace": each.pod.metadata.namespace,
                "name": each.pod.metadata.name,
                "priority": each.pod.spec.priority or 0,
                "used": amount_text(signal, found.used) if found is not None else None,
                "requested": amount_text(signal, found.requested) if found is not None else None,
            }
            for each in in_order[:MOST_PODS]
            for found in (claim(signal, each, layout),)
        ],
        "morePods": max(0, len(in_order) - MOST_PODS),
        "neverEvicted": sum(is_critical(each.pod) for each in candidates),
    }


def _told(records: Iterable[EvictionRecord]) -> Iterator[Json]:
    """The evictions, the newest first."""
    for each in reversed(list(records)):
        yield {**asdict(each), "at": rfc3339_nanoseconds(each.at_ns)}
