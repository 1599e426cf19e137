"""Topics as Spark tables and streams, and the pipelines over them. The extra `roquet[spark]`; nothing else imports this."""
