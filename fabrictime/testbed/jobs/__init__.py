"""Jobs and traffic on the fabric, and their optimum."""
