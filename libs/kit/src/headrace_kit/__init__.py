"""What every Headrace service needs: settings, logs, metrics, traces, lifecycle."""
