"""What acts on the fleet. Empty until a stage decides anything: nothing here touches traffic yet."""
