"""What Headrace's processes agree on: generated messages, codes, keys, limits, prefix keys."""
