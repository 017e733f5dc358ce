"""CPU per second from samples."""

import pytest

from trio_kubelet.stats.rates import Rates
from trio_kubelet.stats.values import CpuUsage, Usage

SECOND = 1_000_000_000


def usage(at_seconds: float, cpu_seconds: float) -> Usage:
    cpu = CpuUsage(total_ns=round(cpu_seconds * SECOND))
    return Usage(time_ns=round(at_seconds * SECOND), cpu=cpu)


@pytest.mark.parametrize(
    ("samples", "cores"),
    [
        pytest.param([(0, 0)], None, id="the first says nothing"),
        pytest.param([(0, 0), (10, 5)], 0.5, id="the second does"),
        pytest.param([(0, 0), (1, 1)], 1.0, id="a second is enough when there is nothing else"),
        pytest.param([(0, 0), (0.1, 1)], None, id="a tenth is not"),
        pytest.param([(0, 0), (10, 5), (11, 6)], 0.5, id="soon after, the last rate counts"),
        pytest.param([(0, 0), (10, 5), (15, 10)], 1.0, id="from five seconds on a new one"),
        pytest.param([(0, 0), (10, 5), (4, 2)], 0.5, id="an older reading has the newest rate"),
        pytest.param([(0, 0), (1000, 5)], None, id="minutes say nothing of now"),
        pytest.param([(0, 9), (10, 5)], None, id="a counter that began anew"),
        pytest.param([(0, 9), (10, 5), (20, 15)], 1.0, id="and goes on"),
        pytest.param([(1000, 0), (0, 5), (10, 10)], 0.5, id="a clock that was set back"),
    ],
)
def test_rate(samples: list[tuple[float, float]], cores: float | None) -> None:
    rates = Rates()
    rated = [rates.rated("it", usage(*sample)) for sample in samples]
    cpu = rated[-1].cpu
    assert cpu is not None
    assert cpu.nano_cores == (None if cores is None else round(cores * SECOND))


def test_what_is_gone_is_forgotten() -> None:
    rates = Rates()
    rates.rated("it", usage(0, 0))
    assert rates.is_known("it", 10 * SECOND)
    rates.keep_only(["another"])
    assert not rates.is_known("it", 10 * SECOND)
