"""From a step to a program that runs `n` of them. Knows torch, knows nothing of Lightning or of loaders."""
