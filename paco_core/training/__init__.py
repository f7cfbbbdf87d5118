"""What both trainers, of the reward and of policies, need once."""
