"""The runtimes of days: which one a node has, the events that it loses, and its registries."""

import random

from tests.simulation.fault_schedule import FaultSchedule
from tests.simulation.health import behaviours_with_health
from tests.simulation.owners import MOST_PODS
from tests.simulation.shapes import PRIVATE_IMAGES, UNREACHABLE
from tests.simulation.shared import PASSWORD, USER
from trio_kubelet.hollow import HollowOptions, HollowRegistry, Latencies, RemoteImage

REGISTRIES = HollowRegistry(
    images={
        image: RemoteImage(pull_seconds=1.5, credentials=(USER, PASSWORD))
        for image in PRIVATE_IMAGES
    },
    unreachable=frozenset({UNREACHABLE}),
    pull_seconds=1.5,
)

RUNTIMES = (
    ("hollow", "1.0"),
    ("containerd", "2.1.0"),
    ("containerd", "1.7.5"),
    ("containerd", "1.6.9"),
)


def runtime_options(seed: int, chance: random.Random, faults: FaultSchedule) -> HollowOptions:
    """The options of a day's runtime."""
    name, version = chance.choice(RUNTIMES)
    return HollowOptions(
        name=name,
        version=version,
        seed=seed,
        faults=faults,
        latencies=Latencies(run_pod_sandbox=0.2, start_container=0.05, stop_pod_sandbox=0.05),
        registry=REGISTRIES,
        behaviours=behaviours_with_health(random.Random(seed + 3)),
        event_loss=chance.choice((0.0, 0.0, 0.05, 0.5)),
        event_buffer=chance.choice((1000, 4)),
        share_event_channel=version.startswith("1.7"),
        has_events=version != "1.6.9",
    )


def loses_events(options: HollowOptions) -> bool:
    """True if events may be lost, so that what containers do may be seen minutes later."""
    return bool(options.event_loss) or options.event_buffer < MOST_PODS
