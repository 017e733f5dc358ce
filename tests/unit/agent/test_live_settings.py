"""What a reload puts in force, what it leaves, and what it says."""

import threading
from typing import Any

import pytest
import structlog.testing
import trio
from attrs import evolve
from trio.testing import MockClock

from tests.file_work import in_place
from trio_kubelet.agent.live_settings import (
    CREDENTIAL_PROVIDERS,
    LiveSettings,
    reload_on_hangup,
)
from trio_kubelet.config import KubeletConfiguration, Settings
from trio_kubelet.config.credential_providers import CredentialProviders
from trio_kubelet.config.settings import ConfigurationError, Examination
from trio_kubelet.kernel.systemd import ServiceNotifier

HANG_SECONDS = 20
"""For a read that ends only because a test that fails has to end, too."""


def settings(**fields: Any) -> Settings:
    return Settings(configuration=evolve(KubeletConfiguration(), **fields))


def live_settings(running: Settings) -> LiveSettings:
    """On a machine that can be run with any burst of pulls but one of 13."""
    return LiveSettings(
        running, lambda new: ["a burst of 13"] if new.configuration.registry_burst == 13 else []
    )


def test_live_fields_come_into_force_and_the_others_wait_for_a_restart() -> None:
    live, told = live_settings(settings()), []
    live.follow(("registryBurst", "registryPullQPS"), lambda: told.append("pace"))
    live.follow(("logging.verbosity",), lambda: told.append("verbosity"))
    new = settings(registry_burst=20, registry_pull_qps=9, max_pods=20)
    for _ in range(2):
        live.offer(new)
        assert live.in_force == settings(registry_burst=20, registry_pull_qps=9)
        assert told == ["pace"], "each part once, and only what has changed"
    assert [each.path for each in live.offer(new)] == ["maxPods"], "until there is one"


def test_a_part_that_is_not_made_yet_is_made_of_the_settings_in_force() -> None:
    live = live_settings(settings())
    live.offer(settings(registry_burst=20))
    assert live.in_force.configuration.registry_burst == 20


def test_other_credential_providers_come_into_force() -> None:
    live, told = live_settings(evolve(settings(), credential_providers=providers("a"))), []
    live.follow((CREDENTIAL_PROVIDERS,), lambda: told.append("providers"))
    new = evolve(settings(registry_burst=20), credential_providers=providers("b"))
    for _ in range(2):
        live.offer(new)
        assert live.in_force == new
    assert told == ["providers"]


def providers(content_hash: str) -> CredentialProviders:
    return CredentialProviders(hash=content_hash)


def test_what_does_not_go_with_the_rest_is_not_taken_over_in_part() -> None:
    running = settings(serialize_image_pulls=True, image_gc_high_threshold_percent=85)
    live = live_settings(running)
    with pytest.raises(ConfigurationError):
        live.offer(settings(registry_burst=20, image_gc_low_threshold_percent=90))
    assert live.in_force == running


def test_what_does_not_go_with_the_machine_is_not_taken_over_in_part() -> None:
    live = live_settings(settings())
    with pytest.raises(ConfigurationError, match="a burst of 13"):
        live.offer(settings(registry_burst=13, registry_pull_qps=9))
    assert live.in_force == settings()


def test_a_part_that_fails_keeps_no_other_from_its_settings() -> None:
    live, told = live_settings(settings()), []

    def fail() -> None:
        raise ZeroDivisionError

    live.follow(("registryBurst",), fail)
    live.follow(("registryBurst",), lambda: told.append("pace"))
    with structlog.testing.capture_logs() as logs:
        live.offer(settings(registry_burst=20))
    assert told == ["pace"]
    assert [entry["event"] for entry in logs] == ["changed settings were not taken over"]


class Service(ServiceNotifier):
    """What the service manager was told."""

    def __init__(self) -> None:
        super().__init__({})
        self.told: list[str] = []

    def ready(self) -> None:
        self.told.append("ready")

    def reloading(self) -> None:
        self.told.append("reloading")


async def reloaded(*read: Examination, live: LiveSettings) -> tuple[list[str], list[str]]:
    """Hang up once for each; returns what the service manager was told, and the log's events."""
    service, answers = Service(), iter(read)
    send, hangups = trio.open_memory_channel[int](len(read))
    with structlog.testing.capture_logs() as logs:
        async with send:
            for _ in read:
                await send.send(1)
        await reload_on_hangup(hangups, lambda: next(answers), live, service)
    return service.told, [entry["event"] for entry in logs]


async def test_a_wrong_file_leaves_the_last_good_settings_in_force() -> None:
    live = live_settings(settings())
    good = Examination(settings=settings(registry_burst=20, max_pods=20, cgroup_driver="systemd"))
    wrong = Examination(settings=settings(registry_burst=30), problems=("maxPods: wrong",))
    told, events = await reloaded(good, wrong, live=live)
    assert live.in_force.configuration.registry_burst == 20
    assert told == ["reloading", "ready"] * 2
    assert events == [
        "configuration reloaded",
        "changed settings need a restart of the agent",
        "changed settings need a restart of the agent on a drained node",
        "configuration reload failed, keeping the previous settings",
    ]


async def test_a_reload_whose_files_cannot_be_read_for_a_while_is_told_of_and_goes_on(
    autojump_clock: MockClock,
) -> None:
    live = live_settings(settings())
    with in_place(lambda: 3600.0):
        new = Examination(settings=settings(registry_burst=20))
        told, events = await reloaded(new, live=live)
    assert events == ["configuration reload is waiting for its files", "configuration reloaded"]
    assert told == ["reloading", "ready"]
    assert live.in_force.configuration.registry_burst == 20


async def test_files_on_a_mount_that_is_dead_hold_up_no_end() -> None:
    live, service = live_settings(settings()), Service()
    begun, answers, has_read = threading.Event(), threading.Event(), threading.Event()
    send, hangups = trio.open_memory_channel[int](1)
    await send.send(1)

    def hang() -> Examination:
        begun.set()
        answers.wait(HANG_SECONDS)
        has_read.set()
        return Examination(settings=settings(registry_burst=20))

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reload_on_hangup, hangups, hang, live, service)
            await trio.to_thread.run_sync(begun.wait)
            nursery.cancel_scope.cancel()
        assert not has_read.is_set()
        answers.set()
        await trio.to_thread.run_sync(has_read.wait)
    assert live.in_force == settings(), "what comes too late is not taken over"


async def test_no_failure_to_read_ends_the_agent() -> None:
    live, service = live_settings(settings()), Service()
    send, hangups = trio.open_memory_channel[int](1)
    await send.send(1)
    await send.aclose()

    def fail() -> Examination:
        raise ZeroDivisionError

    with structlog.testing.capture_logs() as logs:
        await reload_on_hangup(hangups, fail, live, service)
    assert live.in_force == settings()
    assert service.told == ["reloading", "ready"]
    assert [entry["event"] for entry in logs] == [
        "configuration reload failed, keeping the previous settings"
    ]
