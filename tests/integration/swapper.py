"""Exchanges two paths in a tight loop, as a hostile container may: `python swapper.py ONE OTHER`.

Each exchange is one step (renameat2), so neither name is ever free. It ends with its parent.
"""

import ctypes
import os
import sys

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_SWAPS_BETWEEN_LOOKS = 1000


def main(one: str, other: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    first, second, parent = os.fsencode(one), os.fsencode(other), os.getppid()
    while os.getppid() == parent:
        for _ in range(_SWAPS_BETWEEN_LOOKS):
            if libc.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE):
                raise OSError(ctypes.get_errno(), "cannot exchange", one)


if __name__ == "__main__":
    main(*sys.argv[1:])
