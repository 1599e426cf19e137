"""An archive: topics as Parquet files by topic and date, and the manifest that says which files count.

`manifest` values and JSON; `ledger` commits and recovery on a file system; `plan` what a batch reads; `write` what a task
writes; `compact` fewer, larger files; `read` looking inside; `delta` the same on a Delta table. No file here imports Spark
at its head, so that the protocol is tested without it.
"""
