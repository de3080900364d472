"""One file a model family: names of its tensors, and how its configuration is read."""
