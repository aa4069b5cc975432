"""The tab Fabric: the drawn topology, and one cable, node or job."""
