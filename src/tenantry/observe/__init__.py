"""Watching: logs, metrics, traces, SLOs, cost and alerts. All of it subscribes to `telemetry`; none of it is called."""
