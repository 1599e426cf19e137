"""Spark imports every package whose name begins with pyspark_ and looks for this name: so format("rocketmq") is found."""

from roquet.spark.source import RocketMQ as DefaultSource

__all__ = ["DefaultSource"]
