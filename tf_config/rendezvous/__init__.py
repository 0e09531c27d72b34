"""Rendezvous: processes that know their ranks, but not each other's addresses, form a cluster."""

from tf_config.rendezvous.meet import check_url, meet
from tf_config.rendezvous.seat import Seat

__all__ = ["Seat", "check_url", "meet"]
