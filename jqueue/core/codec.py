"""`encode` and `decode` where jqueue 1.0.0 had them."""

from jqueue.core.blob.codec import decode, encode

__all__ = ["decode", "encode"]
