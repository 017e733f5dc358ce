"""What containers leave in files, written by real threads on the real clock."""

from pathlib import Path

import trio

from trio_kubelet.hollow import Behaviour, HollowOptions, LogLine, open_hollow_runtime
from trio_kubelet.rpc.stubs.runtime import v1 as cri
from trio_kubelet.tasks.clock import SystemClock


async def run(
    behaviour: Behaviour, folder: Path, *, files: bool = True, killed: bool = False
) -> None:
    """Run one container that behaves so until it has ended."""
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
    async with open_hollow_runtime(SystemClock(), options) as runtime:
        answer = await runtime.run_pod_sandbox(cri.RunPodSandboxRequest(config=pod))
        request = cri.CreateContainerRequest(
            pod_sandbox_id=answer.pod_sandbox_id, config=config, sandbox_config=pod
        )
        container = (await runtime.create_container(request)).container_id
        await runtime.start_container(cri.StartContainerRequest(container_id=container))
        if killed:
            runtime.containers.kill(container)
        with trio.fail_after(20):
            await runtime.containers.find(container).stopped.wait()


async def log(folder: Path) -> list[str]:
    return (await trio.Path(folder / "logs/main/0.log").read_text()).splitlines()


async def test_lines_are_written_in_the_order_of_their_times(tmp_path: Path) -> None:
    lines = (
        LogLine(text="tick", at_seconds=0.1, every_seconds=0.2),
        LogLine(text="oh", at_seconds=0.2, stream="stderr"),
    )
    await run(Behaviour(log_lines=lines, run_seconds=0.4), tmp_path)
    written = [line.split(" ", 1) for line in await log(tmp_path)]
    assert [text for _, text in written] == ["stdout F tick", "stderr F oh", "stdout F tick"]
    times = [time for time, _ in written]
    assert times == sorted(times)


async def test_a_silent_container_has_an_empty_log(tmp_path: Path) -> None:
    await run(Behaviour(run_seconds=0), tmp_path)
    assert await log(tmp_path) == []


async def test_the_termination_message_is_written_at_the_end(tmp_path: Path) -> None:
    await run(Behaviour(run_seconds=0, termination_message="it broke\n"), tmp_path)
    assert await trio.Path(tmp_path / "message").read_text() == "it broke\n"


async def test_who_is_killed_leaves_no_message(tmp_path: Path) -> None:
    await run(Behaviour(termination_message="it broke\n"), tmp_path, killed=True)
    assert not await trio.Path(tmp_path / "message").exists()


async def test_nothing_is_written_unless_asked_for(tmp_path: Path) -> None:
    behaviour = Behaviour(log_lines=(LogLine(text="hi"),), run_seconds=0, termination_message="x")
    await run(behaviour, tmp_path, files=False)
    assert not await trio.Path(tmp_path / "logs").exists()
    assert not await trio.Path(tmp_path / "message").exists()
