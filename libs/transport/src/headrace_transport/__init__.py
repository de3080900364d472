"""Headrace's wire: Redis streams, leases, frames, resume logs."""
