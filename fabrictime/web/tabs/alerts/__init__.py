"""The tab Alerts: active and cleared alerts, and the evidence for one alert."""
