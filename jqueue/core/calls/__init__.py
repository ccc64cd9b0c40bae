"""Bulk calls, whose jobs go into segments that one commit names, and the claims that a queue object handed out."""
