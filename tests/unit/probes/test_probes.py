"""What users hear of probes that nobody runs."""

import pytest

from trio_kubelet.k8s import Container, Probe
from trio_kubelet.probes import probe_warnings, unprobed_message

PROBE = Probe()


@pytest.mark.parametrize(
    ("container", "said"),
    [
        (Container(), []),
        (
            Container(readiness_probe=PROBE),
            [
                "Readiness probe warning: this kubelet does not run probes yet; "
                "the container counts as ready while it runs"
            ],
        ),
        (
            Container(startup_probe=PROBE, liveness_probe=PROBE),
            [
                "Startup probe warning: this kubelet does not run probes yet; "
                "the container counts as started once it runs",
                "Liveness probe warning: this kubelet does not run probes yet; "
                "nothing restarts the container while it runs",
            ],
        ),
    ],
)
def test_each_probe_of_a_container_is_warned_of(container: Container, said: list[str]) -> None:
    assert list(probe_warnings(container)) == said


@pytest.mark.parametrize(
    ("containers", "message"),
    [
        ([Container(name="a"), Container(name="b", liveness_probe=PROBE)], ""),
        (
            [
                Container(name="a", readiness_probe=PROBE),
                Container(name="b"),
                Container(name="c", startup_probe=PROBE),
            ],
            "this kubelet does not run probes yet: "
            "containers counted as ready while they run: [a c]",
        ),
    ],
)
def test_readiness_that_no_probe_has_decided_says_so(
    containers: list[Container], message: str
) -> None:
    assert unprobed_message(containers) == message
