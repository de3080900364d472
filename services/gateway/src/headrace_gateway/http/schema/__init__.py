"""What request bodies may hold, and how they become calls."""
