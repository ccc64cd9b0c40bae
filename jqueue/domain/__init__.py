"""What a queue is and how it may change: models, operations, errors. No I/O, no clock, no asyncio."""
