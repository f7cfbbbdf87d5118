"""Pairs of panels with a label and reasons: from rankings, votes, imports and edits."""
