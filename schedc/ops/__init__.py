"""Library ops with fakes and autograd. Importing this package registers them."""

from schedc.ops.attention import attention
from schedc.ops.generated import load_graph

__all__ = ["attention", "load_graph"]
