"""Sinks inside a Trainer: the only room that touches Lightning's private names, each with its reason."""
