"""Where `python3 dev.py run` arrives; the service will start from here."""

import sys

if __name__ == "__main__":
    sys.exit("This version of Stint is the accounting library alone: there is nothing to serve yet.")
