r"""A driver of dynamic resource allocation of ours, for tests.

    python -m lab.dra_driver --folder /tmp/driver --cdi /var/run/cdi \
        --registry-socket /var/lib/kubelet/plugins_registry/driver.sock

It prepares the claims that it is asked for, each with one device, and registers with the node's
agent, until it is killed. With `--cdi` a container that has the device gets a variable with the
claim's UID. Calls are written to `calls.jsonl` in its folder. What it does wrong is asked of
`faults.json` there, at each call: {"NodePrepareResources": {"hang": true}}. With `--health` it
tells how devices are, as `health.json` there says: {"device": {"health": 2, "message": "hot"}}.
"""

import argparse
import json
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

from trio_kubelet.rpc import Code, RpcError, open_rpc_loop, serve
from trio_kubelet.rpc.stubs import pluginregistration as registration
from trio_kubelet.rpc.stubs import v1 as wire_health
from trio_kubelet.rpc.stubs import v1alpha1 as wire_health_v1alpha1
from trio_kubelet.rpc.stubs.k8s.io.kubelet.pkg.apis.dra import v1 as wire
from trio_kubelet.rpc.stubs.k8s.io.kubelet.pkg.apis.dra import v1beta1 as wire_v1beta1

NAME = "lab.dra.example.com"
CDI_KIND = "lab.dra.example.com/claim"
VARIABLE = "LAB_CLAIM_"
LOOK_SECONDS = 0.2
"""Between two looks at how devices are."""
REPEAT_SECONDS = 10.0
"""Until health is told again that has not changed."""


HEALTH_CONTRACTS = (
    wire_health.DraResourceHealthBase,
    wire_health_v1alpha1.DraResourceHealthBase,
)


@frozen(kw_only=True)
class DRABehaviour:
    """What the driver says of itself. `requests` has each claim its device for; empty: for all."""

    name: str = NAME
    versions: tuple[str, ...] = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
    requests: tuple[str, ...] = ()
    cdi: Path | None = None
    has_health: bool = False


@define
class LabDRADriver:
    """The services of a driver, and where it writes down what it was asked."""

    folder: Path
    behaviour: DRABehaviour = field(factory=DRABehaviour)
    was_told: trio.Event = field(factory=trio.Event)
    """The agent has told what came of the registration."""

    def calls(self, method: str | None = None) -> list[dict[str, Any]]:
        """The calls so far, or those of one method."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        calls: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [call for call in calls if method in (None, call["method"])]

    def set_faults(self, **faults: object) -> None:
        """Say what goes wrong from now on, by method: `hang`, `hang_after`, `fail`, `answer`.

        With `namespace` only what is asked for claims of it.
        """
        new = self.folder / "faults.new"
        new.write_text(json.dumps(faults))
        new.replace(self.folder / "faults.json")

    def tell_health(self, **devices: Mapping[str, object]) -> None:
        """Say how devices of the pool are from now on: `health`, `message`, `timeout` seconds."""
        new = self.folder / "health.new"
        new.write_text(json.dumps(devices))
        new.replace(self.folder / "health.json")

    def prepared(self) -> set[str]:
        """The UIDs of the claims that may be prepared: asked for, and not undone."""
        return self._between("NodePrepareResources", "Unprepared")

    def usable(self) -> set[str]:
        """The UIDs of the claims that are prepared, and are not to be undone."""
        return self._between("Prepared", "NodeUnprepareResources")

    def _between(self, begin: str, end: str) -> set[str]:
        found: set[str] = set()
        for call in self.calls():
            if call["method"] == begin:
                found.update(call["claims"])
            elif call["method"] == end:
                found.difference_update(call["claims"])
        return found

    async def get_info(self, _: registration.InfoRequest) -> registration.PluginInfo:
        """Introduce the driver."""
        await trio.lowlevel.checkpoint()
        return registration.PluginInfo(
            type="DRAPlugin",
            name=self.behaviour.name,
            endpoint=str(self.folder / "dra.sock"),
            supported_versions=list(self.behaviour.versions),
        )

    async def notify_registration_status(
        self, request: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        """Take note of what came of it."""
        await trio.lowlevel.checkpoint()
        self._note("NotifyRegistrationStatus", error=request.error)
        self.was_told.set()
        return registration.RegistrationStatusResponse()

    async def node_prepare_resources(
        self, request: wire.NodePrepareResourcesRequest
    ) -> wire.NodePrepareResourcesResponse:
        """Prepare claims, each with a device of its own."""
        fault = await self._misbehave("NodePrepareResources", request.claims)
        answer = wire.NodePrepareResourcesResponse()
        for claim in request.claims:
            if "answer" in fault:
                answer.claims[claim.uid] = wire.NodePrepareResourceResponse(error=fault["answer"])
            elif not fault.get("skip"):
                answer.claims[claim.uid] = self._prepare(claim, fault.get("devices", 1))
                self._note("Prepared", claims=[claim.uid])
        if fault.get("hang_after"):
            await trio.sleep_forever()
        return answer

    async def node_unprepare_resources(
        self, request: wire.NodeUnprepareResourcesRequest
    ) -> wire.NodeUnprepareResourcesResponse:
        """Undo it."""
        fault = await self._misbehave("NodeUnprepareResources", request.claims)
        answer = wire.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid] = wire.NodeUnprepareResourceResponse(
                error=fault.get("answer", "")
            )
            if "answer" not in fault:
                self._unprepare(claim)
        if fault.get("hang_after"):
            await trio.sleep_forever()
        return answer

    async def node_watch_resources(
        self, _: wire_health.NodeWatchResourcesRequest
    ) -> AsyncIterator[wire_health.NodeWatchResourcesResponse]:
        """Tell how devices are, whenever that is new and now and then."""
        self._note("NodeWatchResources", claims=[])
        if not self.behaviour.has_health:
            raise RpcError(Code.UNIMPLEMENTED, "unknown service DRAResourceHealth")
        path, told, told_at = self.folder / "health.json", "", 0.0
        while True:
            text = path.read_text() if path.exists() else ""
            fault = self._faults("NodeWatchResources")
            if fault.get("end"):
                return
            is_due = text != told or trio.current_time() >= told_at + REPEAT_SECONDS
            if fault.get("flood") or (text and is_due and not fault.get("mute")):
                told, told_at = text, trio.current_time()
                yield _health(json.loads(text))
            if fault.get("end_after"):
                return
            await trio.sleep(0 if fault.get("flood") else LOOK_SECONDS)

    async def run(
        self, registry: Path, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve and register, until cancelled."""
        contracts = (
            wire.DraPluginBase,
            wire_v1beta1.DraPluginBase,
            registration.RegistrationBase,
            *(HEALTH_CONTRACTS if self.behaviour.has_health else ()),
        )
        async with trio.open_nursery() as nursery:
            for path in (self.folder / "dra.sock", registry):
                await nursery.start(partial(serve, [self], path, contracts=contracts))
            task_status.started()

    def _prepare(self, claim: wire.Claim, count: int) -> wire.NodePrepareResourceResponse:
        if self.behaviour.cdi is not None:
            name = VARIABLE + claim.name.replace("-", "_").replace(".", "_")
            edits = {"env": [f"{name}={claim.uid}"]}
            spec = {
                "cdiVersion": "0.5.0",  # the first whose devices may be named by a digit first
                "kind": CDI_KIND,
                "devices": [{"name": claim.uid, "containerEdits": edits}],
            }
            self.behaviour.cdi.mkdir(parents=True, exist_ok=True)
            self._cdi_file(claim.uid).write_text(json.dumps(spec))
        device = wire.Device(
            request_names=list(self.behaviour.requests),
            pool_name="pool",
            device_name="device",
            cdi_device_ids=[f"{CDI_KIND}={claim.uid}"],
        )
        return wire.NodePrepareResourceResponse(devices=[device] * count)

    def _unprepare(self, claim: wire.Claim) -> None:
        if self.behaviour.cdi is not None:
            self._cdi_file(claim.uid).unlink(missing_ok=True)
        self._note("Unprepared", claims=[claim.uid])

    def _cdi_file(self, uid: str) -> Path:
        assert self.behaviour.cdi is not None
        return self.behaviour.cdi / f"lab-dra-{uid}.json"

    async def _misbehave(self, method: str, claims: list[wire.Claim]) -> dict[str, Any]:
        """Write a call down, then do what the faults say; returns those of the method."""
        self._note(method, claims=[claim.uid for claim in claims])
        await trio.lowlevel.checkpoint()
        fault = self._faults(method)
        if fault.get("namespace") not in (None, *(claim.namespace for claim in claims)):
            return {}
        if fault.get("hang"):
            await trio.sleep_forever()
        if fault.get("fail"):
            raise RpcError(Code.UNKNOWN, str(fault["fail"]))
        return fault

    def _faults(self, method: str) -> dict[str, Any]:
        path = self.folder / "faults.json"
        faults: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        return faults.get(method, {})

    def _note(self, method: str, **facts: Any) -> None:
        """Add a line, which is there though the driver be killed."""
        with (self.folder / "calls.jsonl").open("a") as file:
            file.write(json.dumps({"method": method, **facts}) + "\n")


def _health(devices: Mapping[str, Mapping[str, Any]]) -> wire_health.NodeWatchResourcesResponse:
    return wire_health.NodeWatchResourcesResponse(
        devices=[
            wire_health.DeviceHealth(
                device=wire_health.DeviceIdentifier(pool_name="pool", device_name=name),
                health=wire_health.HealthStatus(each.get("health", 1)),
                last_updated_time=int(time.time()),
                health_check_timeout_seconds=each.get("timeout", 0),
                message=each.get("message", ""),
            )
            for name, each in devices.items()
        ]
    )


async def _main(driver: LabDRADriver, registry: Path) -> None:
    async with open_rpc_loop():
        print("running", flush=True)
        await driver.run(registry)


def main() -> None:
    parser = argparse.ArgumentParser(description="A DRA driver for tests.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--registry-socket", type=Path, required=True)
    parser.add_argument("--name", default=NAME)
    parser.add_argument("--versions", default="v1.DRAPlugin,v1beta1.DRAPlugin")
    parser.add_argument("--requests", default="")
    parser.add_argument("--cdi", type=Path)
    parser.add_argument("--health", action="store_true")
    arguments = parser.parse_args()
    behaviour = DRABehaviour(
        name=arguments.name,
        versions=tuple(arguments.versions.split(",")),
        requests=tuple(filter(None, arguments.requests.split(","))),
        cdi=arguments.cdi,
        has_health=arguments.health,
    )
    trio.run(_main, LabDRADriver(arguments.folder, behaviour), arguments.registry_socket)


if __name__ == "__main__":
    main()
