"""The parts of the worker contract, one for each kind of promise. Use `jqueue.testing.WorkerContract`."""
