"""The rules of every lifecycle in the agent, as tables.

`machine` is the kernel; `pod`, `container`, `image`, `probe`, `resize`, `volume`, `claim`,
`device_plugin`, `pleg`, `pressure`, `certificate` and `shutdown` are one lifecycle each, with its
table and the rules that do not fit one; `pod_ending` adds up what ends a pod, `backoff` is the
waiting that several share; `mermaid` draws the tables into the documentation. The package imports
nothing but the standard library, holds no state and knows no clock: whoever owns a lifecycle keeps
its state in one variable and asks the table where it goes next.
"""

from state_machines.machine import IllegalTransition, InvalidMachineError, Row, Start, StateMachine

__all__ = ["IllegalTransition", "InvalidMachineError", "Row", "Start", "StateMachine"]
