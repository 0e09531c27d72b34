"""Rendezvous: forms a cluster of processes that know their ranks but not each other's addresses."""

from tf_config.rendezvous.participant import Participant
from tf_config.rendezvous.rendezvous import check_url, rendezvous

__all__ = ["Participant", "check_url", "rendezvous"]
