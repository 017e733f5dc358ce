"""Devices of the node that plugins offer, and which container has which of them.

`client.py` calls a plugin; `registration.py` is where they register, `plugins.py` follows what they
offer. `choice.py` (pure) says what pods need and get, `records.py` keeps it in the Go kubelet's
file (`checkpoint.py`), and `manager.py` takes a pod through all of that. `holders.py` knows by the
runtime what containers have that run, though the file be damaged.
"""

from trio_kubelet.devices.holders import RunningContainer
from trio_kubelet.devices.manager import DeviceManager
from trio_kubelet.devices.plugins import DevicePlugins, device_amounts
from trio_kubelet.devices.records import DeviceRecords
from trio_kubelet.devices.registration import DevicePluginRegistration

__all__ = [
    "DeviceManager",
    "DevicePluginRegistration",
    "DevicePlugins",
    "DeviceRecords",
    "RunningContainer",
    "device_amounts",
]
