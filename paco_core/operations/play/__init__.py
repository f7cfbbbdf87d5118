"""``paco play``: a page on this machine to paint sets, edit pictures and score pairs."""
