"""Events, in the core API that kubelets write and `kubectl describe` shows."""

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Int32, Mandatory
from trio_kubelet.k8s.meta import ObjectMeta, ObjectReference
from trio_kubelet.k8s.time import MicroTime, Time


@frozen(kw_only=True, repr=False, eq=False)
class EventSource(ApiType):
    """The component and host that saw it."""

    component: str = ""
    host: str = ""


@frozen(kw_only=True, repr=False, eq=False)
class EventSeries(ApiType):
    """The count of an event of a series, and its last time."""

    count: Int32 | None = None
    last_observed_time: MicroTime | None = None


@frozen(kw_only=True, repr=False, eq=False)
class Event(ApiType):
    """Something that happened to an object; what repeats is counted in one event."""

    api_version: str = ""
    kind: str = ""
    metadata: Mandatory[ObjectMeta] = field(factory=ObjectMeta)
    involved_object: Mandatory[ObjectReference] = field(factory=ObjectReference)
    reason: str = ""
    message: str = ""
    source: EventSource | None = None
    first_timestamp: Time | None = None
    last_timestamp: Time | None = None
    count: Int32 | None = None
    type: str = ""
    event_time: MicroTime | None = None
    series: EventSeries | None = None
    action: str = ""
    related: ObjectReference | None = None
    reporting_component: str = ""
    reporting_instance: str = ""
