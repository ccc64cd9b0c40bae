"""CRC32C, the checksum that Cloud Storage keeps of every object."""

import importlib
from contextlib import suppress
from functools import reduce

_CRC_TABLE = [reduce(lambda crc, _: crc >> 1 ^ 0x82F63B78 * (crc & 1), range(8), byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """The checksum, by the fast library of Google's client if it is there. Without it, two megabytes take a second."""
    with suppress(ImportError):
        return int(importlib.import_module("google_crc32c").value(data))
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
