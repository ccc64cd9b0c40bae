"""Queue sets, which take jobs from several queues as from one."""
