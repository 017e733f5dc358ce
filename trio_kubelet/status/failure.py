"""Why a pod failed, where that was not for its containers."""

from attrs import frozen


@frozen(kw_only=True)
class Failure:
    """The words of the status of a pod that was rejected, disrupted, or over its deadline.

    `rejected`: nothing of it was ever to run here. `disruption` is the message of its condition
    DisruptionTarget (KEP-3329), empty where the failure was no disruption.
    """

    reason: str
    message: str = ""
    rejected: bool = False
    disruption: str = ""
