"""Logs of containers, as `kubectl logs` asks for them.

`choice.py` says whose log it is, `options.py` what is wanted of it, `lines.py` makes of CRI's
format what is sent. `files.py` finds and opens files, `changes.py` tells when there is more,
`reader.py` puts them together as a stream.
"""

from trio_kubelet.logs.changes import LogChanges
from trio_kubelet.logs.endpoint import ContainerLogs, log_routes
from trio_kubelet.logs.reader import LogReader

__all__ = ["ContainerLogs", "LogChanges", "LogReader", "log_routes"]
