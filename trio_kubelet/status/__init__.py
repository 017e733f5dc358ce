"""The status of pods: pure functions that make it, the owner of the newest ones, their way out.

`pod_status` (generate.py) puts a status together out of the pod, what the runtime shows, and
the status before; its parts are `phase`, `container_statuses` and `conditions`. `Statuses`
(statuses.py) keeps the newest status of each pod and tells others of changes. One of them is
`StatusWriter` (writer.py): it joins a status with what the API has (merge.py), sends what differs
(patch.py), and takes pods out of the API of which nothing is left here.
"""

from trio_kubelet.status.context import Failure, NodeIdentity
from trio_kubelet.status.statuses import Statuses, StatusReporter
from trio_kubelet.status.writer import StatusWriter

__all__ = [
    "Failure",
    "NodeIdentity",
    "StatusReporter",
    "StatusWriter",
    "Statuses",
]
