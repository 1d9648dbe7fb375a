"""Attacks: how audits gather scores. One file per idea; `registry` says which audits each mechanism has.

An attack runs a mechanism's own code wherever that is cheap enough. Where it is not, it runs the noise with the
parameters that the mechanism would use, and its `what` says so.
"""
