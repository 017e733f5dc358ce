"""What containers leave in files."""

from pathlib import Path

import trio
from trio.testing import MockClock

from trio_kubelet.clock import TrioClock
from trio_kubelet.hollow import Behaviour, HollowOptions, LogLine, open_hollow_runtime
from trio_kubelet.rpc.stubs.runtime import v1 as cri

START = "2026-01-01T00:00:"


async def run(behaviour: Behaviour, folder: Path, seconds: float, *, files: bool = True) -> None:
    """Run one container that behaves so, for that long at most."""
    options = HollowOptions(images=("busybox",), behaviours=lambda _: behaviour, write_files=files)
    pod = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="pod"), log_directory=str(folder / "logs")
    )
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="main"),
        image=cri.ImageSpec(image="busybox"),
        log_path="main/0.log",
        annotations={"io.kubernetes.container.terminationMessagePath": "/message"},
        mounts=[cri.Mount(container_path="/message", host_path=str(folder / "message"))],
    )
    async with open_hollow_runtime(TrioClock(), options) as runtime:
        answer = await runtime.run_pod_sandbox(cri.RunPodSandboxRequest(config=pod))
        request = cri.CreateContainerRequest(
            pod_sandbox_id=answer.pod_sandbox_id, config=config, sandbox_config=pod
        )
        container = (await runtime.create_container(request)).container_id
        await runtime.start_container(cri.StartContainerRequest(container_id=container))
        await trio.sleep(seconds)


async def log(folder: Path) -> list[str]:
    return (await trio.Path(folder / "logs/main/0.log").read_text()).splitlines()


async def test_lines_are_written_when_they_are_due(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    lines = (
        LogLine(text="tick", at_seconds=1, every_seconds=4),
        LogLine(text="oh", at_seconds=2, stream="stderr"),
    )
    await run(Behaviour(log_lines=lines, run_seconds=8), tmp_path, 20)
    written = [line.split(" ", 3) for line in await log(tmp_path)]
    assert [line[1:] for line in written] == [
        ["stdout", "F", "tick"],
        ["stderr", "F", "oh"],
        ["stdout", "F", "tick"],
    ]
    assert [line[0][: len(START) + 2] for line in written] == [
        f"{START}01",
        f"{START}02",
        f"{START}05",
    ]


async def test_a_silent_container_has_an_empty_log(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    await run(Behaviour(), tmp_path, 1)
    assert await log(tmp_path) == []


async def test_the_termination_message_is_written_at_the_end(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    await run(Behaviour(run_seconds=1, termination_message="it broke\n"), tmp_path, 3)
    assert await trio.Path(tmp_path / "message").read_text() == "it broke\n"


async def test_who_is_killed_leaves_no_message(autojump_clock: MockClock, tmp_path: Path) -> None:
    await run(Behaviour(termination_message="it broke\n"), tmp_path, 3)
    assert not await trio.Path(tmp_path / "message").exists()


async def test_nothing_is_written_unless_asked_for(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    behaviour = Behaviour(log_lines=(LogLine(text="hi"),), run_seconds=1, termination_message="x")
    await run(behaviour, tmp_path, 3, files=False)
    assert not await trio.Path(tmp_path / "logs").exists()
    assert not await trio.Path(tmp_path / "message").exists()
