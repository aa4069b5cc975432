"""The tab Fabric."""
