"""What can be asked over the wire, a module a noun: the headers and bodies, and below them the calls, a row a request code.

A row is `Call(code, header, body, answer header, answer body)`. Whoever asks, answers, or looks at recorded frames takes the
shapes from there; `table.py` has all rows by code.
"""
