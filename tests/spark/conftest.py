from spark_fixtures import spark

__all__ = ["spark"]
