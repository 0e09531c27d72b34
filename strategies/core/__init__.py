"""What all strategies have in common."""
