"""Sends alerts to people: to Alertmanager, to webhooks and to the services of apprise."""
