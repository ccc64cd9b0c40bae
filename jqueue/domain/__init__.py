"""The model of a queue and the rules for changing it: jobs, operations, errors. No I/O, no clock, no asyncio."""
