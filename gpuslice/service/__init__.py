"""The shell of every daemon: settings, logs, health and metrics, TLS reload, signals."""
