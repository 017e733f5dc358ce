"""Logs of the node itself, as `kubectl get --raw /api/v1/nodes/NAME/proxy/logs/` asks for them.

`folder.py` opens and lists what is below `/var/log`, and nothing else. `query.py` reads the query
of the gate NodeLogQuery (KEP-2258), `journal.py` asks systemd's journal, `endpoint.py` answers.
"""

from trio_kubelet.system_logs.endpoint import SystemLogs, system_log_routes

__all__ = ["SystemLogs", "system_log_routes"]
