"""The guided tour `fabrictime demo`: loads the testbed, breaks it, heals it, and comments on the events."""
