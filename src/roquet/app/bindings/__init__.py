"""The wiring of an app from a file in the layout of Spring Cloud Stream. The page is docs/bindings.md."""
