"""What can be made to go wrong: rules that are asked for each request, the first that fits wins."""

from attrs import define, field, frozen


@frozen
class ReceivedRequest:
    """A request as faults and tests see it; `verb` is get, list, watch, create, update, ..."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: str = ""


@define
class RequestFault:
    """What happens to requests that fit; empty fields fit all.

    With a `code` they are refused. `seconds` is how long they wait before they are looked at.
    `lost` ones are carried out, but their answer never comes. It happens `times` times.
    """

    verb: str = ""
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str | None = None
    code: int = 0
    reason: str = ""
    message: str = "refused by a fault"
    retry_after: float | None = None
    seconds: float = 0.0
    lost: bool = False
    times: float = float("inf")

    def fits(self, received: ReceivedRequest) -> bool:
        """Whether the fault is about this request."""
        return (
            self.times > 0
            and self.verb in ("", received.verb)
            and self.resource in ("", received.resource)
            and self.namespace in ("", received.namespace)
            and self.name in ("", received.name)
            and self.subresource in (None, received.subresource)
        )


@define
class Faults:
    """The faults that are switched on."""

    rules: list[RequestFault] = field(factory=list)
    outage: bool = False
    """Nobody answers: connections are refused, and those that are open break."""

    streaming_lists: bool = True
    """Whether `sendInitialEvents` is understood; older servers answer 422."""

    def add(self, fault: RequestFault) -> RequestFault:
        """Switch a fault on; the one returned can be handed to `remove`."""
        self.rules.append(fault)
        return fault

    def remove(self, fault: RequestFault) -> None:
        """Switch a fault off."""
        self.rules.remove(fault)

    def take(self, received: ReceivedRequest) -> RequestFault | None:
        """Return the fault that hits a request, and count it."""
        for fault in self.rules:
            if fault.fits(received):
                fault.times -= 1
                return fault
        return None
