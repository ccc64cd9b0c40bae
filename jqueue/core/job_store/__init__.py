"""Queues on places that keep jobs one by one."""
