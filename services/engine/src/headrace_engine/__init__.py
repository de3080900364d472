"""Headrace's engine: one scheduler thread, one executor thread, paged prefix-cached KV."""
