"""Long runs under kill -9. README.md says how to read them."""
