"""Input and output of disks in the kernel's words."""

from hypothesis import given
from hypothesis import strategies as st

from trio_kubelet.stats.kernel_text import disks, io_v1, io_v2
from trio_kubelet.stats.values import CgroupIo, DiskIo

DISKSTATS = b"""\
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 254       0 vda 1 2 3 4 5 6 7 8 9 10 11 3410313 136 186533664 648069 1528452 200352
   8       0 sda 1 2 3
   8       1 sdb 1 2 3 4 5 6 7 8 9 10 -11
"""


def test_disks_that_were_never_used_are_left_out() -> None:
    assert disks(DISKSTATS) == (DiskIo("254:0", "vda", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),)


def test_both_versions_say_the_same_of_the_same_use() -> None:
    stat = b"254:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n7:0 \n"
    moved = b"254:0 Read 10\n254:0 Write 20\n254:0 Sync 30\n254:0 Total 30\nTotal 30\n"
    done = b"254:0 Read 1\n254:0 Write 2\n254:0 Total 3\nTotal 3\n"
    expected = (CgroupIo("254:0", 10, 20, 1, 2),)
    assert io_v2(stat) == expected
    assert io_v1(moved, done) == expected
    assert io_v1(b"Total 0\n", None) == ()


@given(st.one_of(st.none(), st.binary(max_size=200)))
def test_any_bytes_may_stand_there(text: bytes | None) -> None:
    disks(text)
    io_v2(text)
    io_v1(text, text)
