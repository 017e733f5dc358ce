"""A CRI runtime without a kernel, for the demo, the scale benchmark and the simulation.

Pods and containers are records, processes are tasks that follow a `Behaviour`. It answers as
containerd does: the same conformance tests run against both. Use it in process
(`open_hollow_runtime` and `rpc.InProcess`) or over a socket
(`python -m trio_kubelet.hollow --socket PATH`).
"""

from trio_kubelet.hollow.annotation import BEHAVIOUR_ANNOTATION, BehaviourError, behaviour_of
from trio_kubelet.hollow.behaviour import Behaviour, ExecResult, Invocation, LogLine
from trio_kubelet.hollow.faults import CallFault, FaultRates, Faults, RandomFaults, ScriptedFaults
from trio_kubelet.hollow.images import HollowRegistry, RemoteImage
from trio_kubelet.hollow.options import HollowOptions, Latencies
from trio_kubelet.hollow.runtime import HollowRuntime, open_hollow_runtime

__all__ = [
    "BEHAVIOUR_ANNOTATION",
    "Behaviour",
    "BehaviourError",
    "CallFault",
    "ExecResult",
    "FaultRates",
    "Faults",
    "HollowOptions",
    "HollowRegistry",
    "HollowRuntime",
    "Invocation",
    "Latencies",
    "LogLine",
    "RandomFaults",
    "RemoteImage",
    "ScriptedFaults",
    "behaviour_of",
    "open_hollow_runtime",
]
