"""Which empty messages reach the wire, and how a reader tells them from absent ones."""

import copy
import threading

import pytest
from trio.testing import MockClock

from tests.turns import making_test_data
from trio_kubelet.rpc import Code, RpcError, is_present, look_over, messages, present
from trio_kubelet.rpc.messages import decode, decode_of_any_size
from trio_kubelet.rpc.methods import methods_of
from trio_kubelet.rpc.stubs.runtime import v1 as cri

OVERHEAD_PRESENT = bytes.fromhex("2200")
RUN_AS_USER_PRESENT = bytes.fromhex("2a00")


def test_an_empty_message_is_dropped_unless_marked() -> None:
    resources = cri.LinuxContainerResources
    assert bytes(cri.LinuxPodSandboxConfig(overhead=resources())) == b""
    assert bytes(cri.LinuxPodSandboxConfig(overhead=present(resources()))) == OVERHEAD_PRESENT


def test_an_empty_message_is_kept_once_anything_was_given_or_assigned() -> None:
    given = cri.LinuxPodSandboxConfig(overhead=cri.LinuxContainerResources(cpu_period=0))
    assigned = cri.LinuxPodSandboxConfig()
    assigned.overhead.cpu_period = 0
    assert bytes(given) == OVERHEAD_PRESENT
    assert bytes(assigned) == OVERHEAD_PRESENT


def test_reading_an_absent_message_does_not_make_it_present() -> None:
    config = cri.LinuxPodSandboxConfig()
    assert config.overhead.cpu_period == 0
    assert not is_present(config.overhead)
    assert bytes(config) == b""


@pytest.mark.parametrize(
    ("run_as_user", "sent"),
    [
        (cri.Int64Value(value=0), RUN_AS_USER_PRESENT),
        (cri.Int64Value(0), RUN_AS_USER_PRESENT),
        (present(cri.Int64Value()), RUN_AS_USER_PRESENT),
        (cri.Int64Value(), b""),
        (cri.Int64Value(value=-1), bytes.fromhex("2a0b08ffffffffffffffffff01")),
    ],
)
def test_user_zero_is_sent_when_it_is_given(run_as_user: cri.Int64Value, sent: bytes) -> None:
    assert bytes(cri.LinuxContainerSecurityContext(run_as_user=run_as_user)) == sent


def test_a_message_is_sent_for_the_empty_one_inside_it() -> None:
    linux = cri.LinuxPodSandboxConfig(overhead=present(cri.LinuxContainerResources()))
    assert bytes(cri.PodSandboxConfig(linux=linux)) == bytes.fromhex("42022200")


def test_the_unconfined_and_the_default_profile_are_both_sent() -> None:
    profile = cri.SecurityProfileProfileType
    default = cri.SecurityProfile(profile_type=profile(0))
    unconfined = cri.SecurityProfile(profile_type=profile(1))
    context = cri.LinuxContainerSecurityContext
    assert bytes(context(seccomp=default)) == bytes.fromhex("7a00")
    assert bytes(context(seccomp=unconfined)) == bytes.fromhex("7a020801")


def test_a_reader_tells_absent_from_empty() -> None:
    absent = cri.LinuxContainerSecurityContext().parse(b"")
    empty = cri.LinuxContainerSecurityContext().parse(RUN_AS_USER_PRESENT)
    assert not is_present(absent.run_as_user)
    assert is_present(empty.run_as_user)
    assert absent.run_as_user.value == empty.run_as_user.value == 0


def test_what_was_read_is_sent_again_as_it_was() -> None:
    for data in (b"", RUN_AS_USER_PRESENT):
        message = cri.LinuxContainerSecurityContext().parse(data)
        assert message.run_as_user.value == 0
        assert bytes(message) == data


def test_a_deep_copy_forgets_the_mark() -> None:
    config = cri.LinuxPodSandboxConfig(overhead=present(cri.LinuxContainerResources()))
    assert bytes(copy.deepcopy(config)) == b""


def test_bytes_that_are_no_message_are_an_rpc_error() -> None:
    with pytest.raises(RpcError, match="cannot decode PodSandbox of 1 bytes") as caught:
        decode(cri.PodSandbox, b"\xff")
    assert caught.value.code is Code.INTERNAL


async def test_all_messages_of_a_contract_are_looked_over(autojump_clock: MockClock) -> None:
    await look_over(cri)
    for method in methods_of(cri.RuntimeServiceBase).values():
        assert "_betterproto_meta" in vars(method.request_type)
        assert "_betterproto_meta" in vars(method.response_type)


@pytest.mark.parametrize(("containers", "in_thread"), [(1, False), (1000, True)])
async def test_a_long_message_is_read_in_a_thread(
    containers: int, in_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []

    def read(message_type: type[cri.ListContainersResponse], data: bytes) -> object:
        readers.append(threading.current_thread())
        return decode(message_type, data)

    with making_test_data():
        one = cri.Container(id="x" * 64, labels={"name": "c"})
        sent = cri.ListContainersResponse(containers=[one] * containers)
        data = bytes(sent)
    monkeypatch.setattr(messages, "decode", read)
    assert await decode_of_any_size(cri.ListContainersResponse, data) == sent
    assert [each is not threading.main_thread() for each in readers] == [in_thread]
