"""Pressure on the node, and who has to go for it.

`watch.py` observes the node, when `rhythm.py` says or `memory_events.py` hears the kernel, and
knows which pressures it is under; `manager.py` takes the steps that `decision.py` decides on: first
things of the node that nobody needs, then one pod at a time. `thresholds.py`, `observations.py`,
`pressure.py`, `rhythm.py`, `ranking.py`, `limits.py`, `messages.py` and `decision.py` are pure.
`pressure_record.py` and `records.py` keep over a restart what was found and decided; `report.py`
tells operators.
"""

from trio_kubelet.eviction.pressure import Pressures

__all__ = ["Pressures"]
