"""The overview of the fleet in the terminal and as one HTML file."""
