"""The metrics for Prometheus.

`cadvisor.py` and `resource.py` turn statistics into text, pure; `text.py` is the format. What the
agent does itself is counted by who is told of it.
"""
