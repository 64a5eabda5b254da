"""Compiled loops of the room: the systems of rows, sums of the cost, and lists of the best."""
