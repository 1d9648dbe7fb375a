"""Pure privacy mathematics and the ledger's rules: values in, decisions out. No I/O, clock or randomness."""

from accountant.calibration import calibrate_noise_multiplier, calibrate_split, calibrate_steps
from accountant.engines import Account, account
from accountant.errors import AccountantError, InvalidDocument, InvalidInput
from accountant.events import Adjacency, Event, event_from_json, event_to_json
from accountant.filters import Filter
from accountant.guarantees import Guarantee

__all__ = [
    "Account",
    "AccountantError",
    "Adjacency",
    "Event",
    "Filter",
    "Guarantee",
    "InvalidDocument",
    "InvalidInput",
    "account",
    "calibrate_noise_multiplier",
    "calibrate_split",
    "calibrate_steps",
    "event_from_json",
    "event_to_json",
]
