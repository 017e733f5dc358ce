"""The agent's own process on view: profiles, tasks, and how much it logs.

`samples.py` collects stacks, also in the form that `go tool pprof` reads, `profiles.py` answers
under the paths that the Go kubelet has for it. `loop_meter.py` notices tasks that hold the event
loop.
"""

from trio_kubelet.debugging.loop_meter import LongTurn, LongTurnLog, LoopMeter, metered, turn_routes
from trio_kubelet.debugging.profiles import flag_routes, profile_routes

__all__ = [
    "LongTurn",
    "LongTurnLog",
    "LoopMeter",
    "flag_routes",
    "metered",
    "profile_routes",
    "turn_routes",
]
