"""From a step to a program that runs `n` of them. Knows torch, knows nothing of Lightning or of loaders.

`step.py` is the contract with whoever owns the training; `eager.py` and `compiled.py` are the engines, and `make.py`
chooses. Between them, each room may import those before it:

* `numbers`: Python's numbers that change from step to step.
* `state`: what a training is, in tensors and in Python, and whether that stays as it is.
* `tracing`: from one real step to a recording, a graph.
* `compiler`: from a recording to machine code, and rows of steps that it runs.
* `device`: steps that a GPU repeats by itself.
* `programs`: from recordings that agree to programs, which one is right for a step, and calls of many steps.
"""
