"""Queues of older programs (vsqs, dirq, TextQueue), beside which jqueue works on their own files."""
