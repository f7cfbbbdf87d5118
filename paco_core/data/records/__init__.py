"""What a prompt, an edit and their parts are, and how their files are read."""
