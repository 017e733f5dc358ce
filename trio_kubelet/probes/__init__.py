"""Probes: containers are asked whether they have started up, can serve, and are well.

`pod_probes.py` has a task for each probe of each container that runs, `runner.py` runs a probe
once, by a command (`exec.py`) or with the clients of `pod_clients`. What probes say goes into
statuses; a change wakes the pod, whose plan restarts what has failed.
"""

from trio_kubelet.pod_clients.result import ProbeOutcome
from trio_kubelet.probes.pod_probes import ProbeChange, ProbeRun, Probes
from trio_kubelet.probes.runner import AskOverNetwork, NodeNetwork, ProbeRunner, answer_for_all

__all__ = [
    "AskOverNetwork",
    "NodeNetwork",
    "ProbeChange",
    "ProbeOutcome",
    "ProbeRun",
    "ProbeRunner",
    "Probes",
    "answer_for_all",
]
