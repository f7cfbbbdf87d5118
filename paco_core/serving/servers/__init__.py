"""Servers of reward models on this machine: started, shared by lease, watched, and ended."""
