"""The guided tour `fabrictime demo`: loads the testbed's fabric, breaks it, heals it, narrates it."""
