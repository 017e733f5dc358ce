r"""A CSI driver that answers what `lies.json` in its folder says, as a process.

    python -m tests.hostile.lying_csi_driver --folder /tmp/driver --registry-socket …

`capabilities`: the numbers of what it can do; `topology`, `max_volumes`, `node_id`: what it says
of the node; `usage`: a figure of each volume. `repeat` has each of them said so often.
"""

import json
import sys
from typing import Any

import trio

from lab.csi_driver import BYTES, LabDriver, main
from trio_kubelet.rpc.stubs.csi import v1 as csi


class LyingDriver(LabDriver):
    """The driver; without a lie it is the lab's."""

    def lies(self) -> dict[str, Any]:
        try:
            lies: dict[str, Any] = json.loads((self.folder / "lies.json").read_text())
        except FileNotFoundError:
            return {}
        return lies

    def lie(self, **lies: object) -> None:
        """Say what is answered from now on."""
        new = self.folder / "lies.new"
        new.write_text(json.dumps(lies))
        new.replace(self.folder / "lies.json")

    async def node_get_info(self, request: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        told, lies = await super().node_get_info(request), self.lies()
        told.node_id = lies.get("node_id", told.node_id)
        told.max_volumes_per_node = lies.get("max_volumes", told.max_volumes_per_node)
        if "topology" in lies:
            segments = {f"{key}{n}": "a" for key in lies["topology"] for n in range(lies["repeat"])}
            told.accessible_topology = csi.Topology(segments=segments)
        return told

    async def node_get_capabilities(
        self, request: csi.NodeGetCapabilitiesRequest
    ) -> csi.NodeGetCapabilitiesResponse:
        told, lies = await super().node_get_capabilities(request), self.lies()
        if "capabilities" in lies:
            each = [csi.NodeServiceCapabilityRpc(type=number) for number in lies["capabilities"]]
            said = [csi.NodeServiceCapability(rpc=rpc) for rpc in each]
            told.capabilities = said * lies.get("repeat", 1)
        return told

    async def node_get_volume_stats(
        self, request: csi.NodeGetVolumeStatsRequest
    ) -> csi.NodeGetVolumeStatsResponse:
        told, lies = await super().node_get_volume_stats(request), self.lies()
        await trio.lowlevel.checkpoint()
        if "usage" in lies:
            number = lies["usage"]
            usage = csi.VolumeUsage(total=number, available=number, used=number, unit=BYTES)
            told.usage = [usage] * lies.get("repeat", 1)
        return told


if __name__ == "__main__":
    sys.exit(main(LyingDriver))
