"""What a training is, in tensors and in Python: where it is kept, and whether it stays as it is."""
