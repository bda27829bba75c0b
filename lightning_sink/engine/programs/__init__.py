"""From recordings to programs: which step has one, which one is right for it, and steps in a row."""
