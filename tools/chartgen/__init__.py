"""Writes what the chart has from declarations: its schema, its README, its alerts and dashboards."""
