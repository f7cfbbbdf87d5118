"""``paco play``: a page on this machine to paint sets, edit pictures, score pairs and generate stories."""
