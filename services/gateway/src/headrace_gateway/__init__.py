"""Headrace's gateway: OpenAI-compatible HTTP and gRPC in front of Redis streams."""
