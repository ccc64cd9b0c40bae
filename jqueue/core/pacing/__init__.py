"""How often a store is written: its own pace, and the turns of writers that contend."""
