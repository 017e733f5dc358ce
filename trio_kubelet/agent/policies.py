"""The policies of parts, as settings give them; pure.

A part is made with its policy, and given another one when a reload changes the policy's fields.
"""

import sys
from collections.abc import Iterable
from datetime import timedelta

from attrs import frozen

from state_machines.backoff import BackoffPolicy
from state_machines.container import crash_loop_policy
from trio_kubelet.agent.resource_parts import memory_policy
from trio_kubelet.config import KubeletConfiguration
from trio_kubelet.config.settings import Settings
from trio_kubelet.errors import StartError
from trio_kubelet.eviction.thresholds import Threshold, configured_thresholds
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.logs.rotation import RotationPolicy
from trio_kubelet.node import node_resources
from trio_kubelet.node.machine import MachineInfo
from trio_kubelet.runtime.images.collection import ImageCollectionPolicy

EVICTION_FIELDS = (
    "evictionHard",
    "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "mergeDefaultEvictionSettings",  # which counts for what evictionHard is when it is read
)
IMAGE_FIELDS = (
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "imageMaximumGCAge",
    "imageMinimumGCAge",
)
PULL_FIELDS = ("maxParallelImagePulls", "serializeImagePulls")
RATE_FIELDS = ("registryBurst", "registryPullQPS")
ROTATION_FIELDS = ("containerLogMaxFiles", "containerLogMaxSize", "containerLogMonitorInterval")


@frozen(kw_only=True)
class EvictionPolicy:
    """The thresholds, and for how long a pressure is shown after one was crossed last."""

    thresholds: tuple[Threshold, ...]
    transition_seconds: float


def eviction_policy(configuration: KubeletConfiguration) -> EvictionPolicy:
    """Return the policy that the fields EVICTION_FIELDS give."""
    return EvictionPolicy(
        thresholds=configured_thresholds(configuration),
        transition_seconds=configuration.eviction_pressure_transition_period.total_seconds(),
    )


def image_policy(settings: Settings) -> ImageCollectionPolicy:
    """Return the policy that the fields IMAGE_FIELDS give."""
    configuration, may_be_old = settings.configuration, settings.gates["ImageMaximumGCAge"]
    return ImageCollectionPolicy(
        high_percent=configuration.image_gc_high_threshold_percent,
        low_percent=configuration.image_gc_low_threshold_percent,
        minimum_age=configuration.image_minimum_gc_age,
        maximum_age=configuration.image_maximum_gc_age if may_be_old else timedelta(),
    )


def rotation_policy(configuration: KubeletConfiguration) -> RotationPolicy:
    """Return the policy that the fields ROTATION_FIELDS give."""
    return RotationPolicy(
        max_bytes=Quantity(configuration.container_log_max_size).value,
        max_files=configuration.container_log_max_files,
        interval_seconds=configuration.container_log_monitor_interval.total_seconds(),
    )


def parallel_pulls(configuration: KubeletConfiguration) -> int:
    """Return the number of images that are pulled at once, by the fields PULL_FIELDS."""
    if configuration.serialize_image_pulls:
        return 1
    return configuration.max_parallel_image_pulls or sys.maxsize


def crash_backoff(settings: Settings) -> BackoffPolicy:
    """Return the back-off that crashLoopBackOff.maxContainerRestartPeriod gives."""
    longest = settings.configuration.crash_loop_back_off.max_container_restart_period
    return crash_loop_policy(
        longest.total_seconds() if longest is not None else None,
        reduced_decay=settings.gates["ReduceDefaultCrashLoopBackOffDecay"],
    )


def problems_of_machine(settings: Settings, machine: MachineInfo) -> Iterable[str]:
    """The reasons why a machine cannot be run with settings that validation has passed."""
    resources = node_resources(settings, machine)
    if problem := resources.problem():
        return (problem,)
    try:
        memory_policy(settings.configuration, machine.topology, resources)
    except StartError as error:
        return (str(error),)
    return ()
