"""The parameter-server plane: variables that live on servers, and how workers change them."""
