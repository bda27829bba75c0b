"""From a loader to batches on the device. Knows torch, knows nothing of Lightning or of engines."""
