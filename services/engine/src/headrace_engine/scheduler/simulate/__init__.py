"""The shipped scheduler against a cost model: no device, no threads, no real time."""
