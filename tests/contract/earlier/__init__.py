"""What an earlier version of paco wrote still loads, or is refused with the remedy; ``written`` holds such files."""
