"""schedc: a declarative pipeline-schedule compiler."""

__version__ = "0.1.0"
