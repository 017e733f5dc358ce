"""The part that pulls images, and the credentials that it has for registries.

Slots, pace and credential providers change with the settings while the agent runs.
"""

import os
from collections.abc import Sequence
from functools import partial

from trio_kubelet.agent.cluster import Cluster, Standalone
from trio_kubelet.agent.live_settings import CREDENTIAL_PROVIDERS
from trio_kubelet.agent.node_parts import NodeParts
from trio_kubelet.agent.policies import PULL_FIELDS, RATE_FIELDS, parallel_pulls
from trio_kubelet.runtime.images.credential_plugin import CredentialPlugin
from trio_kubelet.runtime.images.credential_providers import (
    ImageCredentialProvider,
    ImageCredentialProviders,
)
from trio_kubelet.runtime.images.credentials import PodKeyrings, credential_files, read_keyring
from trio_kubelet.runtime.images.manager import ImageManager
from trio_kubelet.runtime.images.pull_rate import PullRate
from trio_kubelet.tasks.fair_limiter import FairLimiter


def make_image_manager(parts: NodeParts, cluster: Cluster | Standalone) -> ImageManager:
    """Make the part that pulls images."""
    settings = parts.settings
    configuration = settings.configuration
    slots = parallel_pulls(configuration)
    limiter = FairLimiter(slots, slots)
    parts.live.follow(PULL_FIELDS, partial(_use_slots, parts, limiter))
    rate = PullRate(configuration.registry_pull_qps, configuration.registry_burst)
    parts.live.follow(RATE_FIELDS, partial(_use_pace, parts, rate))
    files = credential_files(settings.options.root_dir, os.environ.get("HOME", "/root"))
    handler = cluster.runtime_handler
    return ImageManager(
        client=parts.client,
        recorder=parts.recorder,
        journal=parts.journal,
        clock=parts.clock,
        limiter=limiter,
        rate=rate,
        read_keyring=partial(read_keyring, files),
        pod_keyring=PodKeyrings(cluster.references.pull_secrets).keyring,
        providers=_credential_providers(parts, cluster),
        access=parts.image_access,
        runtime_handler=handler if settings.gates["RuntimeClassInImageCriApi"] else None,
        on_lookup=parts.image_lookups,
        on_pull=parts.image_pulls,
    )


def _credential_providers(
    parts: NodeParts, cluster: Cluster | Standalone
) -> ImageCredentialProviders:
    """Make the programs that are asked for credentials of registries."""
    providers = ImageCredentialProviders(_providers_in_force(parts, cluster))
    parts.live.follow(
        (CREDENTIAL_PROVIDERS,), lambda: providers.use(_providers_in_force(parts, cluster))
    )
    return providers


def _providers_in_force(
    parts: NodeParts, cluster: Cluster | Standalone
) -> Sequence[ImageCredentialProvider]:
    """Make those that the settings in force name, which have been asked nothing yet."""
    named = parts.settings.credential_providers
    on_run = parts.credential_plugin_runs.call
    return [
        ImageCredentialProvider(
            config=each,
            plugin=CredentialPlugin(each, named.folder.absolute(), on_run),
            references=cluster.references,
        )
        for each in named.providers
    ]


def _use_slots(parts: NodeParts, limiter: FairLimiter) -> None:
    slots = parallel_pulls(parts.settings.configuration)
    limiter.set_slots(slots, slots)


def _use_pace(parts: NodeParts, rate: PullRate) -> None:
    configuration = parts.settings.configuration
    rate.use(configuration.registry_pull_qps, configuration.registry_burst)
