"""The worker's runners: the only package here that uses faust and aiokafka."""
