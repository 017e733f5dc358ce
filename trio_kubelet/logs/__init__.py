"""Logs of containers, as `kubectl logs` asks for them, and of the node itself.

`options.py` says whose log it is and what is wanted of it, `lines.py` makes of CRI's format what
is sent. `files.py` finds and opens files, `changes.py` tells when there is more, `reader.py` puts
them together as a stream.

Logs of the node are at `kubectl get --raw /api/v1/nodes/NAME/proxy/logs/`: `folder.py` opens and
lists what is below `/var/log`, and nothing else; `query.py` reads the query of the gate
NodeLogQuery (KEP-2258), `journal.py` asks systemd's journal, `system_logs.py` answers.
"""

from trio_kubelet.logs.changes import LogChanges
from trio_kubelet.logs.container_logs import ContainerLogs, log_routes
from trio_kubelet.logs.reader import LogReader

__all__ = ["ContainerLogs", "LogChanges", "LogReader", "log_routes"]
