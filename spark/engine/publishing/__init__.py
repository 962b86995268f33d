"""What publishing is made of: the position of a topic, and the feed of what it lacks."""
