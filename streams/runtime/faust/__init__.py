"""The worker that runs stages on Faust: the only package here that uses faust and aiokafka."""
