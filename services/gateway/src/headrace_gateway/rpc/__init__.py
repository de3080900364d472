"""The gRPC API, on the same service object as HTTP."""
