"""Why specs of volumes fail, by a part of their names: what docs/storage-specs.md says of each."""

from collections.abc import Mapping

REASONS: Mapping[str, str] = {}
