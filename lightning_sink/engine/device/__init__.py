"""Steps that a device repeats by itself: captured, replayed many at a time, with what the host has beside them."""
