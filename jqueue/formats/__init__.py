"""Queues in the files of older programs (vsqs, dirq, TextQueue), which can keep working on them beside jqueue."""
