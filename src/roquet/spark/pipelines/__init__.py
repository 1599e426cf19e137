"""What people do with topics as tables: each a function here and a command `roquet pipeline NAME`."""
