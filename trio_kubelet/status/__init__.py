"""The status of pods: pure functions that make it, and the owner of the newest ones.

`pod_status` (generate.py) puts a status together out of the pod, what the runtime shows, and
the status before; its parts are `phase`, `container_statuses` and `conditions`. `Statuses`
(statuses.py) keeps the newest status of each pod and tells listeners of changes.
"""

from trio_kubelet.status.container_statuses import ProbeVerdict
from trio_kubelet.status.generate import NodeIdentity, pod_status
from trio_kubelet.status.statuses import Statuses

__all__ = ["NodeIdentity", "ProbeVerdict", "Statuses", "pod_status"]
