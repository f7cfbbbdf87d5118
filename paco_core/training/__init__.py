"""Code that the trainers of reward models and policies share."""
