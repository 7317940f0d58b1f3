"""Messages that are due later: one actor a delay level, and how far each is."""
