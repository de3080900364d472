"""Who calls: API keys, made, kept, checked."""
