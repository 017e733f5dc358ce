"""The devices of one resource, as their plugin offers them.

Theory of operation
===================

A plugin registers, and then lists its devices for as long as it lives. It may go at any time, and
the node may start before it. So "nobody has said yet which devices there are" is a state of its
own, and not a list without devices: pods that need some wait in it, and none fails.

    Expected      an earlier agent had devices of the resource, or the plugin went before it listed
                  any; nothing is known of them
    Registered    the plugin has registered, and has not listed its devices yet
    Serving       the devices are those that it listed last
    Lost          it has gone: the devices are known, and none is healthy
    Gone          it did not come back in time: the node has no such resource any more
"""

from enum import StrEnum

from state_machines.machine import Row, Start, StateMachine


class DevicePluginState(StrEnum):
    """States of a resource that a device plugin offers."""

    EXPECTED = "Expected"
    REGISTERED = "Registered"
    SERVING = "Serving"
    LOST = "Lost"
    GONE = "Gone"


class DevicePluginEvent(StrEnum):
    """Acts of the plugin, and the time."""

    REGISTER = "Register"
    """A plugin for the resource has registered and answered."""
    LIST = "List"
    """It has listed its devices."""
    DISCONNECT = "Disconnect"
    """Its list has ended: it has gone, or talks no sense."""
    EXPIRE = "Expire"
    """It was away for as long as it is waited for."""


S, E = DevicePluginState, DevicePluginEvent

UNKNOWN_DEVICES = frozenset({S.EXPECTED, S.REGISTERED})
"""Nobody has said since the start of the agent which devices there are."""

# fmt: off
DEVICE_PLUGIN: StateMachine[DevicePluginState, DevicePluginEvent, None] = StateMachine(
    name="device-plugin",
    starts=(
        Start(S.EXPECTED,   "an earlier agent had devices of the resource"),
        Start(S.REGISTERED, "its plugin registers for the first time"),
    ),
    rows=(
        Row(S.EXPECTED,   E.REGISTER,   S.REGISTERED, "it is back"),
        Row(S.EXPECTED,   E.LIST,       S.SERVING,    "its first list failed, the next did not"),
        Row(S.EXPECTED,   E.DISCONNECT, S.EXPECTED,   "it went again; nothing more is known"),
        Row(S.EXPECTED,   E.EXPIRE,     S.GONE,       "nobody waits for it any longer"),

        Row(S.REGISTERED, E.REGISTER,   S.REGISTERED, "the one that came last serves"),
        Row(S.REGISTERED, E.LIST,       S.SERVING,    "pods may have its devices"),
        Row(S.REGISTERED, E.DISCONNECT, S.EXPECTED,   "it went before it listed any device"),

        Row(S.SERVING,    E.REGISTER,   S.SERVING,    "its devices stay until it lists them anew"),
        Row(S.SERVING,    E.LIST,       S.SERVING,    "other devices, or others of them healthy"),
        Row(S.SERVING,    E.DISCONNECT, S.LOST,       "nobody vouches for the devices"),

        Row(S.LOST,       E.REGISTER,   S.LOST,       "it is back, and has to list its devices"),
        Row(S.LOST,       E.LIST,       S.SERVING,    "it serves again"),
        Row(S.LOST,       E.DISCONNECT, S.LOST,       "it was back too shortly to list any"),
        Row(S.LOST,       E.EXPIRE,     S.GONE,       "it is not waited for any longer"),

        Row(S.GONE,       E.REGISTER,   S.REGISTERED, "it has come back after all"),
        Row(S.GONE,       E.LIST,       S.SERVING,    "it was slow to list its devices"),
        Row(S.GONE,       E.DISCONNECT, S.GONE,       "it went again"),
    ),
)
# fmt: on
