"""The fast library and the table give the same checksum."""

import sys

from tests.servers.crc32c import crc32c


def test_the_checksum_is_the_same_without_the_fast_library(monkeypatch):
    data = [b"", b"123456789", bytes(32), bytes(range(256))]
    fast = [crc32c(each) for each in data]
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert fast == [crc32c(each) for each in data]
    assert [0, 0xE3069283, 0x8A9136AA] == fast[:3]
