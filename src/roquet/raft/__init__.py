"""Raft by DLedger's rules: who leads, what is copied, what is committed. Pure: values that take messages and steady time.

`messages` the RPCs and their JSON bodies, `ledger` what the rules need of a log on disk.
"""
