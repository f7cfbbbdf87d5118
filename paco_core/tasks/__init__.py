"""Tasks of policies: generate a set of panels, or edit an image. Each task has a file and a line in the table."""
