"""Meeting: processes that know their number, and not the others' addresses, form a cluster."""

from tf_config.rendezvous.meet import check_url, meet
from tf_config.rendezvous.seat import Seat

__all__ = ["Seat", "check_url", "meet"]
