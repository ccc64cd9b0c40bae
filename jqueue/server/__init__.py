"""The dashboard, which shows a queue live and lets operators change it, and the broker, both as ASGI applications."""

from __future__ import annotations

from jqueue.server.app import dashboard

__all__ = ["dashboard"]
