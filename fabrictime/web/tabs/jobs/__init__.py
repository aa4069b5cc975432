"""The tab Jobs: verdicts about jobs, their iterations, ranks and traffic."""
