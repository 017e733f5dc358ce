"""The file that keeps when images were used, so that a restart of the agent makes none younger.

It is `image_uses.json` below `--root-dir`. What is lost with it are ages: each image counts as seen
for the first time then. So it need not be on the disk at once, and one that is damaged is replaced.
Everything here blocks.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from trio_kubelet.k8s import Time
from trio_kubelet.kernel.whole_files import write_whole
from trio_kubelet.runtime.images.collection import ImageKey, ImageUse

log = structlog.get_logger("images")

FILE_NAME = "image_uses.json"
MAX_BYTES = 16 << 20
"""More than the records of 50,000 images."""


def read_uses(root: Path) -> Mapping[ImageKey, ImageUse]:
    """Read what an earlier agent has seen; nothing if it left no file that can be read."""
    path = root / FILE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        return dict(_parsed(record) for record in json.loads(data)["images"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.warning("image use records are unreadable", path=str(path), problem=repr(error))
        return {}


def write_uses(root: Path, uses: Mapping[ImageKey, ImageUse]) -> None:
    """Replace the file. Raises OSError."""
    records = [_printed(key, use) for key, use in sorted(uses.items())]
    write_whole(root / FILE_NAME, json.dumps({"images": records}, indent=1).encode() + b"\n")


def _printed(key: ImageKey, use: ImageUse) -> dict[str, str]:
    record = {
        "id": key.id,
        "runtimeHandler": key.runtime_handler,
        "firstDetected": str(Time(use.first_detected_ns)),
        "lastUsed": str(Time(use.last_used_ns)) if use.last_used_ns else "",
    }
    return {name: value for name, value in record.items() if value}


def _parsed(record: Mapping[str, Any]) -> tuple[ImageKey, ImageUse]:
    """Raises KeyError, TypeError or ValueError for what is no record."""
    key = ImageKey(id=str(record["id"]), runtime_handler=str(record.get("runtimeHandler", "")))
    last_used = record.get("lastUsed", "")
    return key, ImageUse(
        first_detected_ns=Time.parse(record["firstDetected"]).ns,
        last_used_ns=Time.parse(last_used).ns if last_used else 0,
    )
