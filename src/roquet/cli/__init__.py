"""The `roquet` command. One file per noun; `main.py` joins them. Everything it knows of a cluster comes through `admin` and `client`."""
