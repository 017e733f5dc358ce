"""A driver of dynamic resource allocation as the agent calls it: each call has a deadline.

What a driver answers goes into configs of containers and into a file: its size is limited, and an
answer that breaks a rule is told of as one that failed. Each call has a connection of its own, for
one that was idle for days may be none any more, and calls are few. Calls for claims of one
namespace that hang leave places for those of others.
"""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, closing
from functools import partial

from attrs import field, frozen

from trio_kubelet.dra.checkpoint import PreparedDevice
from trio_kubelet.rpc import Channel, RpcError, rpc_words
from trio_kubelet.rpc.stubs.k8s.io.kubelet.pkg.apis.dra import v1 as wire
from trio_kubelet.rpc.stubs.k8s.io.kubelet.pkg.apis.dra import v1beta1 as wire_v1beta1
from trio_kubelet.tasks.fair_limiter import FairLimiter

CALL_SECONDS = 45.0
"""The deadline of every call, as in the Go kubelet."""
MAX_ANSWER_BYTES = 4 * 2**20
"""The largest message that gRPC for Go takes."""
MAX_DEVICES = 256
"""Of a claim and a driver; the API lets a claim have 32."""
MAX_NAMES = 64
"""Of requests, and of CDI devices, of one device."""
MAX_NAME_BYTES = 512
MAX_WORDS = 1024
"""Characters of an error of a driver: it becomes part of messages of pods."""

CALLS_AT_ONCE = 32
"""Of a driver."""
CALLS_OF_NAMESPACE = 16

V1, V1BETA1 = "v1.DRAPlugin", "v1beta1.DRAPlugin"
VERSIONS = (V1, V1BETA1)
"""The versions of the contract, the newest first, as drivers name them when they register."""


@frozen
class ClaimIdentity:
    """A claim as drivers are told of it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@frozen(kw_only=True)
class DriverAnswer:
    """The result of a call, by the UIDs of claims: each is in one of the two.

    `devices` are those that were prepared; none where claims were unprepared.
    """

    devices: Mapping[str, tuple[PreparedDevice, ...]] = field(factory=dict)
    problems: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class DRADriver:
    """The way to a driver: its name, the path of its socket and the version that it speaks."""

    name: str
    endpoint: str
    version: str
    _turns: FairLimiter = field(
        factory=partial(FairLimiter, CALLS_AT_ONCE, CALLS_OF_NAMESPACE), eq=False, repr=False
    )

    async def prepare(self, claims: Collection[ClaimIdentity]) -> DriverAnswer:
        """Have devices of a namespace's claims made ready.

        Cancelled, nobody knows whether they are.
        """
        stub = wire.DraPluginStub if self.version == V1 else wire_v1beta1.DraPluginStub
        request = wire.NodePrepareResourcesRequest(claims=_told(claims))
        try:
            async with self._turn(claims) as channel:
                answer = await channel.unary(
                    stub.node_prepare_resources, request, deadline_seconds=CALL_SECONDS
                )
        except RpcError as error:
            return _failed(claims, "NodePrepareResources", error)
        devices: dict[str, tuple[PreparedDevice, ...]] = {}
        problems: dict[str, str] = {}
        for claim in claims:
            told = answer.claims.get(claim.uid)
            if told is None:
                problem = f"NodePrepareResources skipped ResourceClaim {claim}"
            elif told.error:
                problem = (
                    f"NodePrepareResources failed for ResourceClaim {claim}: "
                    f"{told.error[:MAX_WORDS]}"
                )
            elif wrong := _problem(told.devices):
                problem = f"NodePrepareResources answered for ResourceClaim {claim} {wrong}"
            else:
                devices[claim.uid] = tuple(map(_device, told.devices))
                continue
            problems[claim.uid] = problem
        return DriverAnswer(devices=devices, problems=problems)

    async def unprepare(self, claims: Collection[ClaimIdentity]) -> DriverAnswer:
        """Have that undone; claims that are not prepared are fine. Cancelled as `prepare`."""
        stub = wire.DraPluginStub if self.version == V1 else wire_v1beta1.DraPluginStub
        request = wire.NodeUnprepareResourcesRequest(claims=_told(claims))
        try:
            async with self._turn(claims) as channel:
                answer = await channel.unary(
                    stub.node_unprepare_resources, request, deadline_seconds=CALL_SECONDS
                )
        except RpcError as error:
            return _failed(claims, "NodeUnprepareResources", error)
        problems: dict[str, str] = {}
        for claim in claims:
            told = answer.claims.get(claim.uid)
            if told is None:
                problems[claim.uid] = f"NodeUnprepareResources skipped ResourceClaim {claim}"
            elif told.error:
                problems[claim.uid] = (
                    f"NodeUnprepareResources failed for ResourceClaim {claim}: "
                    f"{told.error[:MAX_WORDS]}"
                )
        return DriverAnswer(problems=problems)

    @asynccontextmanager
    async def _turn(self, claims: Collection[ClaimIdentity]) -> AsyncIterator[Channel]:
        """A connection for one call, once it is the turn of the claims' namespace."""
        namespace = next((each.namespace for each in claims), "")
        async with self._turns.share(namespace):
            with closing(Channel(self.endpoint, max_answer_bytes=MAX_ANSWER_BYTES)) as channel:
                yield channel


def _told(claims: Collection[ClaimIdentity]) -> list[wire.Claim]:
    return [wire.Claim(namespace=each.namespace, uid=each.uid, name=each.name) for each in claims]


def _device(told: wire.Device) -> PreparedDevice:
    return PreparedDevice(
        pool=told.pool_name,
        device=told.device_name,
        requests=tuple(told.request_names),
        cdi_ids=tuple(told.cdi_device_ids),
        share_id=told.share_id,
    )


def _problem(devices: Collection[wire.Device]) -> str:
    """Return what of an answer is of no use; "" if all of it is usable."""
    if len(devices) > MAX_DEVICES:
        return f"{len(devices)} devices, must be at most {MAX_DEVICES}"
    for each in devices:
        lists = (each.request_names, each.cdi_device_ids)
        if any(len(names) > MAX_NAMES for names in lists):
            return f"a device with more than {MAX_NAMES} requests or CDI devices"
        names = (each.pool_name, each.device_name, each.share_id, *each.request_names)
        if any(len(name.encode()) > MAX_NAME_BYTES for name in (*names, *each.cdi_device_ids)):
            return f"a device with a name of more than {MAX_NAME_BYTES} bytes"
        if "" in each.cdi_device_ids:
            return "a device with an empty name of a CDI device"
    return ""


def _failed(claims: Collection[ClaimIdentity], call: str, error: RpcError) -> DriverAnswer:
    words = f"{call}: {rpc_words(error.code, error.message[:MAX_WORDS])}"
    return DriverAnswer(problems={claim.uid: words for claim in claims})
