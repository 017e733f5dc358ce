"""What is measured, and against what: the agent beside bare calls to the same runtime.

    python -m benchmarks                 all, in some minutes
    python -m benchmarks pod-start       one of them
    python -m benchmarks --list          what there is

On a machine that others use too only ratios mean something, so each round does the same work
twice, with bare calls and with the agent, one right after the other. Running and stopped are
read off the runtime, never off what the agent says of itself.
"""
