"""Dynamic resource allocation: devices of ResourceClaims, which drivers get ready for pods.

`drivers.py` has the drivers that are registered, `driver.py` calls one. `claims.py` (pure) says
which claims a pod has and which devices of them its containers get; `records.py` keeps the claims
of this node in the Go kubelet's file (`checkpoint.py`), and `manager.py` has them prepared before
the first container of a pod and unprepared after the last one. `slices.py` removes what a driver
that has gone told the scheduler; `health.py` follows what drivers say of their devices, for the
statuses of pods (`statuses.py`).
"""

from trio_kubelet.dra.drivers import DRADrivers
from trio_kubelet.dra.manager import ClaimManager, ClaimsAwaitedError
from trio_kubelet.dra.records import ClaimRecords
from trio_kubelet.dra.slices import ResourceSliceRemoval

__all__ = [
    "ClaimManager",
    "ClaimRecords",
    "ClaimsAwaitedError",
    "DRADrivers",
    "ResourceSliceRemoval",
]
