"""The formats of older queues without a daemon, each as a place that keeps jobs one by one: `JobStorePort`."""
