"""The worker's side of parameter-server training: variables on servers, and their updates."""
