"""What a start tells of the host, and of what it could not do."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest
import trio
from attrs import evolve

from lab.ports import free_port
from trio_kubelet.agent import Agent
from trio_kubelet.clock import TrioClock
from trio_kubelet.config import KubeletConfiguration, NodeOptions, Settings
from trio_kubelet.config.parts import (
    KubeletAuthentication,
    KubeletAuthorization,
    KubeletWebhookAuthentication,
)
from trio_kubelet.hollow import HollowOptions, open_hollow_runtime
from trio_kubelet.rpc import InProcess
from trio_kubelet.startup import StartError


@asynccontextmanager
async def agent(
    root: Path, *, logs: Path | None = None, resolv_conf: str = "", hollow: bool = True
) -> AsyncIterator[Agent]:
    configuration = evolve(
        KubeletConfiguration(),
        pod_logs_dir=str(logs or root / "logs"),
        healthz_port=0,
        enable_server=False,
        resolv_conf=resolv_conf,
    )
    options = NodeOptions(root_dir=str(root), hostname_override="here", hollow=hollow)
    clock = TrioClock()
    async with open_hollow_runtime(clock, HollowOptions()) as runtime:
        service = InProcess(runtime)
        settings = Settings(configuration=configuration, options=options)
        yield Agent(settings, clock, (service, service, None))


async def told(agent: Agent, step: str) -> list[tuple[str, str]]:
    """The node's events of one step of the start."""
    (row,) = (each for each in agent.steps if each.name == step)
    async with trio.open_nursery() as nursery:
        await nursery.start(row.run)
    return [(entry.event, entry.cause) for entry in agent.journal.entries("here")]


@pytest.mark.parametrize(
    ("root", "logs", "words", "setting"),
    [
        ("null/root", "logs", "root directory: mkdir {0}/null", "--root-dir"),
        ("root", "null/logs", 'pod logs root directory "{0}/null/logs": mkdir {0}', "podLogsDir"),
    ],
)
async def test_a_folder_that_cannot_be_made_ends_the_start_with_an_event(
    tmp_path: Path, root: str, logs: str, words: str, setting: str
) -> None:
    os.close(os.open(tmp_path / "null", os.O_CREAT))
    async with agent(tmp_path / root, logs=tmp_path / logs) as starting:
        with pytest.RaisesGroup(StartError, allow_unwrapped=True, flatten_subgroups=True) as ended:
            await told(starting, "folders")
        ((event, message),) = (
            (entry.event, entry.cause) for entry in starting.journal.entries("here")
        )
    assert event == "KubeletSetupFailed"
    assert message.startswith(f"error creating {words.format(tmp_path)}")
    assert message.endswith(": not a directory")
    assert f"check {setting}" in str(ended.value.exceptions)


async def test_a_host_with_cgroup_v1_is_warned_of(tmp_path: Path) -> None:
    is_v2 = os.access("/sys/fs/cgroup/cgroup.controllers", os.F_OK)
    async with agent(tmp_path, hollow=False) as starting:
        events = dict(await told(starting, "warnings"))
    assert ("CgroupV1" in events) is not is_v2
    if not is_v2:
        assert events["CgroupV1"] == (
            "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future "
            "release. Please migrate to cgroup v2. More information at "
            "https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1"
        )


async def test_without_a_kernel_there_is_nothing_to_warn_of(tmp_path: Path) -> None:
    async with agent(tmp_path) as starting:
        assert await told(starting, "warnings") == []


async def test_a_resolv_conf_that_is_not_there_is_told_of_without_waiting_for_the_runtime(
    tmp_path: Path,
) -> None:
    async with agent(tmp_path, resolv_conf=f"{tmp_path}/none") as starting:
        assert await told(starting, "warnings") == [
            ("CheckLimitsForResolvConf", f"open {tmp_path}/none: no such file or directory")
        ]


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_server_that_is_switched_off_listens_nowhere(tmp_path: Path, enabled: bool) -> None:
    with trio.fail_after(60):
        async with agent(tmp_path) as found:
            port = free_port()
            configuration = evolve(
                found.settings.configuration,
                enable_server=enabled,
                port=port,
                address="127.0.0.1",
                authorization=KubeletAuthorization(mode="AlwaysAllow"),
                authentication=KubeletAuthentication(
                    webhook=KubeletWebhookAuthentication(enabled=False)
                ),
            )
            options = evolve(found.settings.options, cert_dir=str(tmp_path / "pki"))
            found.settings = evolve(found.settings, configuration=configuration, options=options)
            (row,) = (each for each in found.steps if each.name == "secure port")
            async with trio.open_nursery() as nursery:
                await nursery.start(row.run)
                with nullcontext() if enabled else pytest.raises(OSError, match="attempts"):
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                nursery.cancel_scope.cancel()
