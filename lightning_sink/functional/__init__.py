"""Sinks without a Trainer. Knows engines and queues, knows nothing of Lightning."""
