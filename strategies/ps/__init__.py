"""Parameter servers, as a worker uses them: variables on servers, and their updates."""
