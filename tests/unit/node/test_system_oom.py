"""Processes that the kernel killed for the machine's memory, as its log tells."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.trio_clock import TrioClock
from trio_kubelet.kernel.kernel_log import KernelRecord, parse_record
from trio_kubelet.node.system_oom import OomReader, SystemOom, SystemOomWatch
from trio_kubelet.telemetry import EventRecorder, Journal
from trio_kubelet.telemetry.events import RecordedEvent

REST = "total-vm:1048576kB, anon-rss:999kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:99kB"


@pytest.mark.parametrize(
    ("text", "killed"),
    [
        (f"Out of memory: Killed process 812 (java) {REST}", SystemOom(812, "java")),
        (
            f"Out of memory (oom_kill_allocating_task): Killed process 9 (a b) {REST}",
            SystemOom(9, "a b"),
        ),
        (
            "Out of memory: Kill process 812 (java) score 900 or sacrifice child",
            SystemOom(812, "java"),
        ),
        (f"Out of memory: Killed process 7 (x) (y)) {REST}", SystemOom(7, "x) (y)")),
        (f"Out of memory: Killed process 7 (x) total-vm) {REST}", SystemOom(7, "x) total-vm")),
        (f"Memory cgroup out of memory: Killed process 812 (java) {REST}", None),
        ("java invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0", None),
        (f"x: Out of memory: Killed process 812 (java) {REST}", None),
        ("Out of memory: Killed process 812", None),
    ],
)
def test_of_all_that_the_kernel_says_only_such_a_kill_counts(
    text: str, killed: SystemOom | None
) -> None:
    assert OomReader().take(KernelRecord(sequence=1, by_kernel=True, text=text)) == killed


def test_what_a_program_writes_into_the_log_is_no_kill() -> None:
    text = f"Out of memory: Killed process 812 (java) {REST}"
    record = parse_record(f"12,5,77,-;{text}\n".encode())
    assert record == KernelRecord(sequence=5, by_kernel=False, text=text)
    assert OomReader().take(record) is None


@pytest.mark.parametrize(
    ("data", "record"),
    [
        (b"3,339,5140900,-;NET: 10\n", KernelRecord(339, True, "NET: 10")),
        (b"4,7,1,c,caller=T1;a;b\n SUBSYSTEM=acpi\n", KernelRecord(7, True, "a;b")),
        (b"4,7,1,-;\xff\x00", KernelRecord(7, True, "\\xff\x00")),
        (b"", None),
        (b"no record", None),
    ],
)
def test_records_as_the_kernel_writes_them(data: bytes, record: KernelRecord | None) -> None:
    assert parse_record(data) == record


class Node:
    """A node whose kernel is the test: one write to a packet pipe is one read, as of a record."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read_end, self.write_end = os.pipe2(os.O_DIRECT)
        fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, 1 << 20)
        self.journal = Journal(TrioClock())

    def add(self, sequence: int, text: str) -> None:
        os.write(self.write_end, f"3,{sequence},1,-;{text}\n".encode())

    def kill(self, sequence: int, name: str) -> None:
        self.add(sequence, f"Out of memory: Killed process {sequence} ({name}) {REST}")

    @property
    def told(self) -> list[str]:
        return [each.cause for each in self.journal.entries() if each.event == "SystemOOM"]

    async def agent_tells(self, count: int, *, boot_id: str = "boot-1") -> list[str]:
        """The first so many events of an agent that is started now, which then ends."""
        before = len(self.told)
        enough = trio.Event()

        def count_events(_: RecordedEvent) -> None:
            if len(self.told) >= before + count:
                enough.set()

        recorder = EventRecorder(self.journal, "node")
        recorder.on_event.add(count_events)
        path = Path(f"/proc/self/fd/{self.read_end}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(SystemOomWatch(path, self.folder, boot_id, recorder).run)
            with trio.fail_after(10):
                await enough.wait()
            nursery.cancel_scope.cancel()
        return self.told[before:]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    os.close(node.write_end)
    os.close(node.read_end)


def told(pid: int, name: str) -> str:
    return f"System OOM encountered, victim process: {name}, pid: {pid}"


async def test_each_kill_is_an_event_in_the_go_kubelets_words(node: Node) -> None:
    node.add(1, "java invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0")
    node.kill(2, "java")
    node.add(3, "oom_reaper: reaped process 2 (java)")
    node.kill(5, "my db")
    assert await node.agent_tells(2) == [told(2, "java"), told(5, "my db")]


async def test_a_cgroup_that_is_killed_as_a_whole_is_one_event(node: Node) -> None:
    node.kill(1, "sleep")
    node.add(2, "Tasks in /kubepods/pod1/c are going to be killed due to memory.oom.group set")
    node.kill(3, "init")
    node.kill(4, "sleep")
    node.add(5, "db invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0")
    node.kill(6, "db")
    assert await node.agent_tells(2) == [told(1, "sleep"), told(6, "db")]


async def test_an_agent_that_is_started_again_tells_of_what_it_missed_alone(node: Node) -> None:
    node.kill(2, "java")
    assert await node.agent_tells(1) == [told(2, "java")]
    for pid, name in ((2, "java"), (9, "trio-kubelet")):
        node.kill(pid, name)
    assert await node.agent_tells(1) == [told(9, "trio-kubelet")]


async def test_numbers_begin_anew_with_each_boot(node: Node) -> None:
    node.kill(9, "java")
    await node.agent_tells(1)
    node.kill(2, "db")
    assert await node.agent_tells(1, boot_id="boot-2") == [told(2, "db")]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        '{"bootID": "boot-1", "sequence": "x"}',
        '{"bootID": "boot-1", "sequence": 1e400, "x": "\\ud800"}',
    ],
)
async def test_a_damaged_record_is_as_good_as_none(node: Node, content: str) -> None:
    (node.folder / "system-oom.json").write_text(content)
    node.kill(2, "java")
    assert await node.agent_tells(1) == [told(2, "java")]


async def test_a_flood_of_other_records_hides_no_kill(node: Node) -> None:
    for sequence in range(250):
        node.add(sequence, "audit: something")
    node.kill(250, "java")
    assert await node.agent_tells(1) == [told(250, "java")]


async def test_a_log_that_cannot_be_read_is_no_failure_of_the_agent(node: Node) -> None:
    recorder = EventRecorder(node.journal, "node")
    with trio.fail_after(10):
        await SystemOomWatch(node.folder / "none", node.folder, "boot-1", recorder).run()
    assert node.told == []
