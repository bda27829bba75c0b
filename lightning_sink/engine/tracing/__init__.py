"""From one real step of the training to a recording of it: a graph, and what must hold for it to stand for others."""
