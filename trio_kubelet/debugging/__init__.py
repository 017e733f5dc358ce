"""What the agent tells of its own process: profiles, tasks, and how much it logs.

`stacks.py` collects, `pprof.py` puts it into the form that `go tool pprof` reads, `endpoint.py`
answers under the paths that the Go kubelet has for it.
"""

from trio_kubelet.debugging.endpoint import flag_routes, profile_routes

__all__ = ["flag_routes", "profile_routes"]
