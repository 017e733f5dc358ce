"""Pod lifecycle events: what changed in the runtime, found by looking and by being told.

`Pleg` runs the relist and listens to the runtime's event stream, keeps the `RuntimeCache` true
and tells the sync loop which pods to look at (`PodChange`).
"""

from trio_kubelet.pleg.generator import Pleg, PodChange

__all__ = ["Pleg", "PodChange"]
