"""Dashboards as code, the JSON files built from them, and provisioning for Grafana."""
