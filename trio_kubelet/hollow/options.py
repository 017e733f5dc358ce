"""The options of a hollow runtime: one frozen value."""

from attrs import field, frozen

from trio_kubelet.hollow.annotation import behaviour_of
from trio_kubelet.hollow.behaviour import Behaviours
from trio_kubelet.hollow.faults import Faults, no_faults
from trio_kubelet.hollow.images import HollowRegistry


@frozen(kw_only=True)
class Latencies:
    """The durations of calls, in seconds on trio's clock, beside what a behaviour asks for."""

    run_pod_sandbox: float = 0.0
    stop_pod_sandbox: float = 0.0
    create_container: float = 0.0
    start_container: float = 0.0
    list: float = 0.0


@frozen(kw_only=True)
class HollowOptions:
    """The settings of a hollow runtime.

    `name` and `version` are what Version answers; agents trust events only of runtimes that they
    know. `seed` makes ids and shuffling repeatable. `images` are on the node from the start.
    `shuffle` gives list answers and their maps in random order, as Go does. `write_files` writes
    logs and termination messages to the real paths. `has_list_streams`: it sends lists in many
    messages, too, which containerd 2.1 does not. `event_buffer` bounds each listener's
    events; `share_event_channel` deals events out among the listeners instead of giving each of
    them all, and `event_loss` drops that share of them (0 to 1): the defects of containerd 1.7.
    """

    name: str = "hollow"
    version: str = "2.1.0"
    seed: int = 0
    latencies: Latencies = Latencies()
    behaviours: Behaviours = behaviour_of
    faults: Faults = no_faults
    registry: HollowRegistry = field(factory=HollowRegistry)
    images: tuple[str, ...] = ()
    subnet: str = "10.88.0.0/16"
    handlers: tuple[str, ...] = ("", "runc")
    systemd_cgroups: bool = False
    shuffle: bool = True
    write_files: bool = False
    has_events: bool = True
    has_list_streams: bool = True
    event_buffer: int = 1000
    event_loss: float = 0.0
    share_event_channel: bool = False
