"""Checks of GPUs: NVIDIA's by NVML, AMD's by sysfs, XIDs, the machine type that follows from them."""
