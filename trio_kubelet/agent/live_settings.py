"""Settings that change while the agent runs: SIGHUP has its files read anew.

What was read is checked as a whole, as at the start; if anything is wrong with it, the last good
settings stay in force. Of what has changed, the fields that parts of the agent follow are taken
over at once (`LIVE` in `config/changes.py`); the rest is said to need a restart, at each reload
until there is one. So the settings in force are those of the start with the newest live fields.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial

import structlog
from attrs import evolve

from trio_kubelet.config.changes import LIVE, Change, Effect, changes, with_fields
from trio_kubelet.config.settings import ConfigurationError, Examination, Settings
from trio_kubelet.config.validation import validate
from trio_kubelet.kernel.systemd import ServiceNotifier
from trio_kubelet.tasks.concurrency import run_and_call_if_slow
from trio_kubelet.tasks.threads import run_in_thread

log = structlog.get_logger("config")

CREDENTIAL_PROVIDERS = "--image-credential-provider-config"
"""The files that this flag names change; the flag does not."""

SLOW_SECONDS = 10.0
"""A reload that has not read its files by then is told of; it goes on waiting."""


class LiveSettings:
    """Owner of the settings in force.

    `problems_here` tells what keeps this machine from being run with settings that are right.
    """

    def __init__(
        self, settings: Settings, problems_here: Callable[[Settings], Iterable[str]]
    ) -> None:
        self._in_force = settings
        self._problems_here = problems_here
        self._followers: dict[str, list[Callable[[], None]]] = {}

    @property
    def in_force(self) -> Settings:
        """The settings that the agent acts on."""
        return self._in_force

    @property
    def followed(self) -> frozenset[str]:
        """The paths of the fields that parts follow."""
        return frozenset(self._followers)

    def follow(self, paths: Iterable[str], take_over: Callable[[], None]) -> None:
        """Have a function called whenever one of these fields has changed."""
        for path in paths:
            self._followers.setdefault(path, []).append(take_over)

    def offer(self, new: Settings) -> tuple[Change, ...]:
        """Put what is live of new settings in force; returns all in which they differ.

        Raises ConfigurationError if that does not go with what needs a restart; then nothing is.
        """
        running = self._in_force
        found = changes(running.configuration, new.configuration) + _provider_changes(running, new)
        live = [each.path for each in found if each.effect is Effect.LIVE]
        fields = [path for path in live if path in LIVE]
        configuration = with_fields(running.configuration, new.configuration, fields)
        taken = evolve(
            running, configuration=configuration, credential_providers=new.credential_providers
        )
        problems = tuple(validate(configuration, running.options, running.gates))
        if problems := problems or tuple(self._problems_here(taken)):
            raise ConfigurationError(problems)
        self._in_force = taken
        # Parts that are not made yet will be made of these settings.
        followers = (each for path in live for each in self._followers.get(path, ()))
        for take_over in dict.fromkeys(followers):
            try:
                take_over()
            except Exception:
                log.exception("changed settings were not taken over")
        return found


def _provider_changes(running: Settings, new: Settings) -> tuple[Change, ...]:
    """The change of the files with image credential providers, by the hashes over them."""
    before, after = running.credential_providers.hash, new.credential_providers.hash
    if before == after:
        return ()
    return (Change(path=CREDENTIAL_PROVIDERS, before=before, after=after, effect=Effect.LIVE),)


async def reload_on_hangup(
    hangups: AsyncIterator[int],
    read: Callable[[], Examination],
    live: LiveSettings,
    notifier: ServiceNotifier,
) -> None:
    """Read the settings anew at each SIGHUP, for ever. `read` blocks.

    Cancelled, a thread that still reads is left alone, and what it reads is not taken over.
    """
    async for _ in hangups:
        notifier.reloading()
        try:
            reload(await _read_in_thread(read), live)
        except ConfigurationError as error:
            log.error(
                "configuration reload failed, keeping the previous settings",
                problems=list(error.problems),
            )
        except Exception:
            log.exception("configuration reload failed, keeping the previous settings")
        notifier.ready()


async def _read_in_thread(read: Callable[[], Examination]) -> Examination:
    """Read the settings, and tell of it where that takes long.

    Cancelled, it leaves the thread alone: a file on a mount that is dead would hold up the end.
    """

    def warn() -> None:
        log.warning(
            "configuration reload is waiting for its files",
            seconds=SLOW_SECONDS,
            hint="see whether the disk or the server that has them answers",
        )

    return await run_and_call_if_slow(
        partial(run_in_thread, read, abandon_on_cancel=True), SLOW_SECONDS, warn
    )


def reload(read: Examination, live: LiveSettings) -> None:
    """Take over what was read, and say what has changed. Raises ConfigurationError."""
    if read.problems:
        raise ConfigurationError(read.problems)
    found = live.offer(read.settings)
    for warning in read.settings.warnings:
        log.warning(warning)
    shown = {effect: [str(each) for each in found if each.effect is effect] for effect in Effect}
    log.info("configuration reloaded", changed=shown[Effect.LIVE])
    if shown[Effect.RESTART]:
        log.warning("changed settings need a restart of the agent", changed=shown[Effect.RESTART])
    if shown[Effect.DRAIN]:
        log.warning(
            "changed settings need a restart of the agent on a drained node",
            changed=shown[Effect.DRAIN],
        )
