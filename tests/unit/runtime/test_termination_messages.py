"""Termination messages: which file they come from, and what of it is shown."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from trio_kubelet.rpc import MOST_MESSAGE_CHARACTERS, InProcess
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.runtime.client import RuntimeClient
from trio_kubelet.runtime.config.names import (
    TERMINATION_MESSAGE_PATH_ANNOTATION,
    TERMINATION_MESSAGE_POLICY_ANNOTATION,
)
from trio_kubelet.runtime.inspection import PodInspector
from trio_kubelet.runtime.observed import ObservedPod
from trio_kubelet.runtime.pod_files import read_log_tail, read_termination_message
from trio_kubelet.runtime.termination_messages import (
    MessageSource,
    message_source,
    read_messages,
)

LOG_PATH = "/dev/termination-log"
EXITED = cri.ContainerState.from_string("CONTAINER_EXITED")
RUNNING = cri.ContainerState.from_string("CONTAINER_RUNNING")


def exited(
    *,
    file: str = "/node/message",
    policy: str = "File",
    exit_code: int = 1,
    state: cri.ContainerState = EXITED,
    reason: str = "Error",
    message: str = "",
    annotations: Mapping[str, str] | None = None,
) -> cri.ContainerStatus:
    return cri.ContainerStatus(
        id="c-0",
        metadata=cri.ContainerMetadata(name="c"),
        state=state,
        exit_code=exit_code,
        reason=reason,
        message=message,
        log_path="/node/0.log",
        mounts=[
            cri.Mount(container_path="/etc/hosts", host_path="/node/hosts"),
            cri.Mount(container_path=LOG_PATH, host_path=file),
        ],
        annotations=dict(
            annotations
            if annotations is not None
            else {
                TERMINATION_MESSAGE_PATH_ANNOTATION: LOG_PATH,
                TERMINATION_MESSAGE_POLICY_ANNOTATION: policy,
            }
        ),
    )


FALLBACK = "FallbackToLogsOnError"


@pytest.mark.parametrize(
    ("status", "file", "log"),
    [
        (exited(), "/node/message", ""),
        (exited(policy=FALLBACK), "/node/message", "/node/0.log"),
        (exited(policy=FALLBACK, exit_code=0), "/node/message", ""),
        (exited(policy=FALLBACK, reason="ContainerCannotRun"), "/node/message", ""),
    ],
)
def test_the_message_is_in_the_mounted_file_and_on_errors_may_be_in_the_log(
    status: cri.ContainerStatus, file: str, log: str
) -> None:
    assert message_source(status) == MessageSource(container_id="c-0", file=file, log=log)


@pytest.mark.parametrize("status", [exited(state=RUNNING), exited(annotations={})])
def test_where_there_can_be_no_message_no_file_is_touched(status: cri.ContainerStatus) -> None:
    assert message_source(status) is None


@pytest.mark.parametrize(
    ("runtime_says", "written", "logged", "shown"),
    [
        ("", "no config", "12:00 boom", "no config"),
        ("oom", "no config", "", "oom: no config"),
        ("oom", "", "", "oom"),
        ("", "", "boom", "boom\n"),
        ("", "", "", ""),
    ],
)
def test_the_runtime_speaks_first_then_the_file_or_else_the_log(
    tmp_path: Path, runtime_says: str, written: str, logged: str, shown: str
) -> None:
    file, log = tmp_path / "message", tmp_path / "0.log"
    file.write_text(written)
    log.write_text(f"2026-01-01T00:00:00.1Z stderr F {logged}\n" if logged else "")
    source = MessageSource(
        container_id="c-0", runtime_message=runtime_says, file=str(file), log=str(log)
    )
    assert read_messages([source]) == {"c-0": shown}


def test_of_what_the_runtime_says_only_the_beginning_is_kept() -> None:
    status = exited()
    status.message = "a" * 2 * MOST_MESSAGE_CHARACTERS
    source = message_source(status)
    assert source is not None
    assert source.runtime_message == "a" * MOST_MESSAGE_CHARACTERS


def test_only_the_end_of_a_long_message_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.write_text("a" * 5000 + "b" * 4000)
    assert read_termination_message(str(file)) == "a" * 96 + "b" * 4000


def test_no_container_can_make_the_node_wait_or_read_another_file(tmp_path: Path) -> None:
    secret, link, pipe = tmp_path / "secret", tmp_path / "link", tmp_path / "pipe"
    secret.write_text("secret")
    link.symlink_to(secret)
    os.mkfifo(pipe)
    paths = (link, pipe, tmp_path, tmp_path / "missing", Path("/dev/zero"))
    assert [read_termination_message(str(path)) for path in paths] == [""] * len(paths)
    assert [read_log_tail(str(path)) for path in paths] == [""] * len(paths)


def test_of_a_file_of_gigabytes_only_the_end_is_read(tmp_path: Path) -> None:
    file = tmp_path / "huge"
    with file.open("wb") as written:
        written.truncate(8 << 30)
        written.seek(0, os.SEEK_END)
        written.write(b"last words")
    message = read_termination_message(str(file))
    assert len(message) == 4096
    assert message.endswith("last words")


def test_a_log_of_one_line_without_end_shows_what_of_it_is_whole(tmp_path: Path) -> None:
    log, part = tmp_path / "0.log", "2026-01-01T00:00:00Z stdout P " + "x" * 1000
    log.write_text(f"{part}\n" * 10_000)
    assert read_log_tail(str(log)) == "x" * 2048
    log.write_text("2026-01-01T00:00:00Z stdout F " + "x" * 10_000_000)
    assert read_log_tail(str(log)) == ""


def test_the_log_is_shown_without_prefixes_and_with_its_parts_joined(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text(
        "2026-01-01T00:00:00Z stdout F one\n"
        "2026-01-01T00:00:00Z stderr P tw\n"
        "2026-01-01T00:00:00Z stderr F o\n"
        "2026-01-01T00:00:00Z stdout F \n"
        "2026-01-01T00:00:00Z stdout F three\n"
        "2026-01-01T00:00:0"
    )
    assert read_log_tail(str(log)) == "one\ntwo\n\nthree\n"


def test_eighty_lines_of_the_log_are_shown_at_most(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text("".join(f"2026-01-01T00:00:00Z stdout F {i}\n" for i in range(5000)))
    assert read_log_tail(str(log)).splitlines() == [str(i) for i in range(4920, 5000)]


def test_two_kibibytes_of_the_log_are_shown_at_most(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    log.write_text(f"2026-01-01T00:00:00Z stdout F {'x' * 9000}\n" * 9)
    assert read_log_tail(str(log)) == "x" * 2047 + "\n"


class OnePodRuntime:
    """Lists one container and describes it."""

    def __init__(self, status: cri.ContainerStatus) -> None:
        self._status = status

    async def list_pod_sandbox(
        self, request: cri.ListPodSandboxRequest
    ) -> cri.ListPodSandboxResponse:
        return cri.ListPodSandboxResponse()

    async def list_containers(
        self, request: cri.ListContainersRequest
    ) -> cri.ListContainersResponse:
        container = cri.Container(id="c-0", pod_sandbox_id="s-0")
        return cri.ListContainersResponse(containers=[container])

    async def container_status(
        self, request: cri.ContainerStatusRequest
    ) -> cri.ContainerStatusResponse:
        return cri.ContainerStatusResponse(status=self._status)


@pytest.mark.parametrize(
    ("state", "shown"), [(EXITED, "oom: no config"), (RUNNING, "oom")], ids=["exited", "running"]
)
async def test_an_inspection_reads_the_message_of_what_has_ended(
    tmp_path: Path, state: cri.ContainerState, shown: str
) -> None:
    file = tmp_path / "message"
    file.write_text("no config")
    status = exited(file=str(file), message="oom", state=state)
    client = RuntimeClient(InProcess(OnePodRuntime(status)))
    observed = await PodInspector(client=client).inspect(
        ObservedPod(uid="u", name="", namespace="", observed_at=0.0)
    )
    assert [container.message for container in observed.containers] == [shown]
