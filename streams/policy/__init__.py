"""What flows are to do: decisions from link health, contention and flow reports. Pure: no Kafka, no clock."""
