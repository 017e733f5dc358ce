"""The Fowler-Noll-Vo hash in which the Go kubelet writes checksums and hashes of containers."""

FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193
_UINT32 = 0xFFFFFFFF


def fnv1a_32(data: bytes, value: int = FNV_OFFSET) -> int:
    """The hash that Go has as `fnv.New32a`.

    `value` is the hash of what stands before the data.
    """
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _UINT32
    return value
