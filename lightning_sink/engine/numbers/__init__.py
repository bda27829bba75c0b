"""Python's numbers that change from step to step, and where a user's source takes them."""
