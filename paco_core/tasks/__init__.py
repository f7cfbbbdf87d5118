"""What policies are trained to do: paint a set of panels, or edit a picture. One file a task, one line in the table."""
