"""The events that end a pod, as the table has them: what tests of endings choose from."""

from state_machines.pod import POD, PodState

ENDINGS = frozenset(
    row.event for row in POD.rows_from(PodState.SYNC_POD) if row.target is PodState.TERMINATING
)
LATE_ENDINGS = sorted(ENDINGS & set(POD.legal_events(PodState.TERMINATING)))
"""Those that can come when the pod ends already."""
