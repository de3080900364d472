"""The HTTP edge: OpenAI-compatible routes over the inference service."""
