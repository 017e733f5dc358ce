"""A volume of a CSI driver: as the node has it for all its pods, and as it is published for one.

Theory of operation
===================

A persistent volume is brought to the node once, for all its pods there: a controller attaches it,
where the driver wants that, and the driver stages it. For each pod the driver publishes it, which
puts it into the pod's folder; what a driver makes for one pod alone is only published. Each of
these calls may hang, fail, or be cut off with the agent, and then nobody knows what the driver has
done. So there is a state for that, and it is the state that a restarted agent begins in unless it
finds proof of another.

    Unstaged, Unpublished     the driver has not been asked, or has undone it
    WaitingForAttachment      the controller has not told yet that the volume is at the node
    Staging, Publishing       the driver was asked to do it, and has not answered
    Staged, Published         the driver has done it
    Uncertain                 a call failed or its answer was lost; the driver is asked again
    Unstaging, Unpublishing   the driver was asked to undo it, and has not answered

That a call is to be made is on the disk before it is made. CSI lets every call be repeated. A
volume is not unstaged before it is unpublished for the last pod that used it.
"""

from enum import StrEnum

from state_machines.machine import Row, Start, StateMachine


class StageState(StrEnum):
    """States of a volume at the node."""

    UNSTAGED = "Unstaged"
    WAITING = "WaitingForAttachment"
    STAGING = "Staging"
    STAGED = "Staged"
    UNCERTAIN = "Uncertain"
    UNSTAGING = "Unstaging"


class StageEvent(StrEnum):
    """Calls that begin, and what becomes of them."""

    AWAIT = "Await"
    """A controller has to attach the volume first."""
    ABANDON = "Abandon"
    """Nobody waits for the attachment any more."""
    STAGE = "Stage"
    """The driver is asked to stage the volume."""
    UNSTAGE = "Unstage"
    """The driver is asked to undo that."""
    SUCCEEDED = "Succeeded"
    """The driver answered that it is done."""
    FAILED = "Failed"
    """The driver answered with an error, or not at all."""


T, F = StageState, StageEvent

# fmt: off
STAGE: StateMachine[StageState, StageEvent, None] = StateMachine(
    name="stage",
    starts=(
        Start(T.UNSTAGED,  "a pod needs it, and nothing was written down"),
        Start(T.STAGED,    "an earlier agent had the driver's answer, and something is mounted"),
        Start(T.UNCERTAIN, "an earlier agent, or an earlier boot of the machine, began a call"),
    ),
    rows=(
        Row(T.UNSTAGED,  F.AWAIT,     T.WAITING,   "its driver attaches volumes to nodes"),
        Row(T.UNSTAGED,  F.STAGE,     T.STAGING,   "a pod needs it"),

        Row(T.WAITING,   F.STAGE,     T.STAGING,   "it is attached"),
        Row(T.WAITING,   F.ABANDON,   T.UNSTAGED,  "the pods that needed it have gone"),

        Row(T.STAGING,   F.SUCCEEDED, T.STAGED,    "it can be published for pods"),
        Row(T.STAGING,   F.FAILED,    T.UNCERTAIN, "what the driver did is not known"),

        Row(T.STAGED,    F.STAGE,     T.STAGING,   "its driver wanted no staging, and does now"),
        Row(T.STAGED,    F.UNSTAGE,   T.UNSTAGING, "the last pod that used it has given it back"),

        Row(T.UNCERTAIN, F.STAGE,     T.STAGING,   "the driver is asked again"),
        Row(T.UNCERTAIN, F.UNSTAGE,   T.UNSTAGING, "the driver may have staged it"),

        Row(T.UNSTAGING, F.SUCCEEDED, T.UNSTAGED,  "nothing of it is left at the node"),
        Row(T.UNSTAGING, F.FAILED,    T.UNCERTAIN, "it may be staged still"),
    ),
)
# fmt: on


class VolumeState(StrEnum):
    """States of a volume that a driver publishes for a pod."""

    UNPUBLISHED = "Unpublished"
    PUBLISHING = "Publishing"
    PUBLISHED = "Published"
    UNCERTAIN = "Uncertain"
    UNPUBLISHING = "Unpublishing"


class VolumeEvent(StrEnum):
    """Calls that begin, and what becomes of them."""

    PUBLISH = "Publish"
    """The driver is asked to mount the volume."""
    REPUBLISH = "Republish"
    """The driver is asked to bring a mounted volume up to date."""
    UNPUBLISH = "Unpublish"
    """The driver is asked to take the volume away."""
    SUCCEEDED = "Succeeded"
    """The driver answered that it is done."""
    FAILED = "Failed"
    """The driver answered with an error, or not at all."""


S, E = VolumeState, VolumeEvent

# fmt: off
VOLUME: StateMachine[VolumeState, VolumeEvent, None] = StateMachine(
    name="volume",
    starts=(
        Start(S.UNPUBLISHED, "the pod is new, and nothing was written down"),
        Start(S.PUBLISHED,   "an earlier agent had the driver's answer, and the mount is there"),
        Start(S.UNCERTAIN,   "an earlier agent, or an earlier boot of the machine, began a call"),
    ),
    rows=(
        Row(S.UNPUBLISHED,  E.PUBLISH,   S.PUBLISHING,   "a pod needs it"),

        Row(S.PUBLISHING,   E.SUCCEEDED, S.PUBLISHED,    "containers may use it"),
        Row(S.PUBLISHING,   E.FAILED,    S.UNCERTAIN,    "what the driver did is not known"),

        Row(S.PUBLISHED,    E.REPUBLISH, S.PUBLISHED,    "its mount stays, however that goes"),
        Row(S.PUBLISHED,    E.UNPUBLISH, S.UNPUBLISHING, "the pod's containers have ended"),

        Row(S.UNCERTAIN,    E.PUBLISH,   S.PUBLISHING,   "the driver is asked again"),
        Row(S.UNCERTAIN,    E.UNPUBLISH, S.UNPUBLISHING, "the driver may have mounted it"),

        Row(S.UNPUBLISHING, E.SUCCEEDED, S.UNPUBLISHED,  "nothing of it is left"),
        Row(S.UNPUBLISHING, E.FAILED,    S.UNCERTAIN,    "it may be mounted still"),
    ),
)
# fmt: on
