"""The sources of static pods, a folder and a URL: each is watched anew when its settings change.

The set of pods that is found at the new place replaces that of the old one, as after a restart: a
manifest at another path is another pod. A source that is named no more has none. Until the new
place could be read the pods of the old one stay.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio
from attrs import define, field

from trio_kubelet.agent.live_settings import LiveSettings
from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.k8s import Pod
from trio_kubelet.sources import (
    ManifestContext,
    PodUpdates,
    Source,
    watch_manifest_files,
    watch_manifest_url,
)
from trio_kubelet.sources.manifest_source import SendPods
from trio_kubelet.sources.manifests import adopt_running

FILE_FIELDS = ("fileCheckFrequency", "staticPodPath")
HTTP_FIELDS = ("httpCheckFrequency", "staticPodURL", "staticPodURLHeader")

Watch = Callable[[KubeletConfiguration, SendPods], Awaitable[None]]
"""Watches a source as a configuration names it; returns at once if that names none."""


async def watch_static_sources(parts: NodeParts, updates: PodUpdates) -> None:
    """Read folder and URL, as far as the settings in force name them, until cancelled."""
    kept = parts.root / "static-pods"
    context = partial(
        ManifestContext,
        node_name=parts.node_name,
        adopt=lambda: adopt_running(parts.cache.pods()),
        journal=parts.journal,
    )
    file = partial(watch_files, context(kept_folder=kept / "file"))
    http = partial(_watch_url, context(kept_folder=kept / "http"))
    async with trio.open_nursery() as nursery:
        for source, fields, watch in (
            (Source.FILE, FILE_FIELDS, file),
            (Source.HTTP, HTTP_FIELDS, http),
        ):
            watched = WatchedSource(parts.live, watch, partial(updates.take, source))
            parts.live.follow(fields, watched.begin_anew)
            nursery.start_soon(watched.run)


async def watch_files(
    context: ManifestContext, configuration: KubeletConfiguration, send: SendPods
) -> None:
    """Watch the folder that a configuration names; return at once if it names none."""
    if configuration.static_pod_path:
        await watch_manifest_files(
            Path(configuration.static_pod_path),
            send,
            context,
            check_seconds=configuration.file_check_frequency.total_seconds(),
        )


async def _watch_url(
    context: ManifestContext, configuration: KubeletConfiguration, send: SendPods
) -> None:
    if configuration.static_pod_url:
        await watch_manifest_url(
            configuration.static_pod_url,
            send,
            context,
            headers=configuration.static_pod_url_header,
            check_seconds=configuration.http_check_frequency.total_seconds(),
        )


@define(eq=False)
class WatchedSource:
    """Owner of the watch of one source, whose full sets of pods `take` gets."""

    _live: LiveSettings
    _watch: Watch
    _take: SendPods
    _scope: trio.CancelScope = field(init=False, factory=trio.CancelScope)
    _is_sending: bool = field(init=False, default=False)
    _is_outdated: bool = field(init=False, default=False)

    def begin_anew(self) -> None:
        """Watch what the settings name now."""
        self._is_outdated = True
        # What the merge was told of and the sync loop was not would never be told.
        if not self._is_sending:
            self._scope.cancel()

    async def run(self) -> None:
        """Watch for ever. A source that is not named has no pods."""
        while True:
            self._is_outdated = False
            with trio.CancelScope() as self._scope:
                await self._watch(self._live.in_force.configuration, self._send)
                await self._send(())
                await trio.sleep_forever()

    async def _send(self, pods: tuple[Pod, ...]) -> None:
        self._is_sending = True
        try:
            await self._take(pods)
        finally:
            self._is_sending = False
        if self._is_outdated:
            self._scope.cancel()
