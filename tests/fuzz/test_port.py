"""Anything may be sent to the node's port: it answers, and nothing of it is left.

TRIO_KUBELET_FUZZ_REQUESTS says how much; `python -m tests.fuzz.port --requests 100000` is the
long way of the same.
"""

import os

from tests.fuzz.port import fuzz_port

REQUESTS = int(os.environ.get("TRIO_KUBELET_FUZZ_REQUESTS", "400"))


def test_whatever_is_sent_the_port_answers_and_nothing_is_left() -> None:
    report = fuzz_port(1, REQUESTS)
    assert report.findings == (), f"python -m tests.fuzz.port --requests {REQUESTS} --seed 1"
    assert report.statuses >= {"200", "400", "404", "405"}
