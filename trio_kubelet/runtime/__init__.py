"""What is done to pods through the container runtime, and how it looks afterwards.

`planning.py` decides (pure), `pod_runtime.py` carries out, `client.py` speaks CRI, `observed.py`
holds what was seen.
"""
