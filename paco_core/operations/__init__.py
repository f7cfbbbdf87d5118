"""What runs by the clock: measuring champions again, auditing reproducibility, sending alerts."""
