"""Where the engine runs: on threads beside io, or in a process of its own."""
