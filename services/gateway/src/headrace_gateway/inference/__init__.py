"""The use case: calls in, requests out, events back. Knows no HTTP and no gRPC."""
