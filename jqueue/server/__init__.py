"""The dashboard: a page that shows a queue live and lets operators change it, as an ASGI application or as one file."""

from __future__ import annotations

from jqueue.server.app import dashboard

__all__ = ["dashboard"]
