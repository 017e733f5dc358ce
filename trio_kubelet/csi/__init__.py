"""Volumes of drivers that speak the Container Storage Interface (CSI), the node's side of it.

`driver.py` calls a driver; `drivers.py` has those that are registered on this node; `settings.py`
knows what the cluster says of them, `volume_limits.py` how many volumes they can have here,
`volume_usages.py` the space of their volumes. The volumes themselves are in `volumes/csi*.py`.
"""

from trio_kubelet.csi.driver import (
    EXPANDS,
    DriverClient,
    Expansion,
    Publication,
    Staging,
    VolumeAccess,
)
from trio_kubelet.csi.drivers import CSIDrivers, DriverCall
from trio_kubelet.csi.settings import (
    DriverSettings,
    NoDriverSettings,
    NoSettingsError,
    UnknownSettingsError,
)
from trio_kubelet.csi.volume_limits import VolumeLimits
from trio_kubelet.csi.volume_usages import MeasuredVolume, VolumeOfPod, VolumeUsages

__all__ = [
    "EXPANDS",
    "CSIDrivers",
    "DriverCall",
    "DriverClient",
    "DriverSettings",
    "Expansion",
    "MeasuredVolume",
    "NoDriverSettings",
    "NoSettingsError",
    "Publication",
    "Staging",
    "UnknownSettingsError",
    "VolumeAccess",
    "VolumeLimits",
    "VolumeOfPod",
    "VolumeUsages",
]
