"""What is read out of the runtime's description of a container."""

import pytest

from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.inspection import observed_container


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (cri.Signal.RUNTIME_DEFAULT, ""),
        (cri.Signal.SIGTERM, "SIGTERM"),
        (cri.Signal.SIGRTMINPLUS1, "SIGRTMIN+1"),
        (cri.Signal.SIGRTMAXMINUS2, "SIGRTMAX-2"),
        (9999, ""),
    ],
)
def test_the_stop_signal_has_the_name_that_the_api_gives_it(number: int, name: str) -> None:
    sent = cri.ContainerStatus(stop_signal=number)  # type: ignore[arg-type]
    told = cri.ContainerStatus().parse(bytes(sent))
    assert observed_container(told, "sandbox").stop_signal == name
