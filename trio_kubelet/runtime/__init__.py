"""The actions on pods through the container runtime, and the look at their results.

`planning.py` decides (pure), `pod_runtime.py` carries out, `client.py` speaks CRI, `observed.py`
holds what was seen.
"""
