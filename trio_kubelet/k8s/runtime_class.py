"""Runtime classes: names for the handlers of container runtimes."""

from collections.abc import Mapping

from attrs import field, frozen

from trio_kubelet.k8s.base import ApiType, Mandatory
from trio_kubelet.k8s.meta import ObjectMeta
from trio_kubelet.k8s.quantity import Quantity
from trio_kubelet.k8s.scheduling import Toleration


@frozen(kw_only=True, repr=False, eq=False)
class Overhead(ApiType):
    """The resources that each pod of the class needs besides its containers."""

    pod_fixed: Mapping[str, Quantity] = field(factory=dict)


@frozen(kw_only=True, repr=False, eq=False)
class Scheduling(ApiType):
    """On which nodes pods of the class run."""

    node_selector: Mapping[str, str] = field(factory=dict)
    tolerations: tuple[Toleration, ...] = ()


@frozen(kw_only=True, repr=False, eq=False)
class RuntimeClass(ApiType):
    """A runtime class; `handler` is what the runtime is asked for."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(factory=ObjectMeta)
    handler: Mandatory[str] = ""
    overhead: Overhead | None = None
    scheduling: Scheduling | None = None
