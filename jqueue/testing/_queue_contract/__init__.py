"""The parts of `jqueue.testing.queue_contract`, one idea each. Import that module, not these."""
