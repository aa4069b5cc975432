"""Checks of the machine: processors, memory, firmware, clock, BMC, PCIe."""
