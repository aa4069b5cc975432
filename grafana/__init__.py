"""Dashboards as code, the JSON they make, and provisioning for Grafana."""
