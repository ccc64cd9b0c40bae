"""The rate of writes to a store: its own pace, and the turns of contending writers."""
