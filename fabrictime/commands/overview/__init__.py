"""Shows the overview of the fleet in the terminal, or writes it as one HTML file."""
