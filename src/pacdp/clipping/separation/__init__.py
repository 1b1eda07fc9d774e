"""Whether the examples of a batch can influence each other in a model.

Book-keeping runs a whole batch through the model at once, which is private only if no example
influences another's outputs. A numerical test could miss that, so it is proved instead: a copy of
the model runs on tensors that have shapes but no values (torch's meta device), and every torch
function and layer that it calls is looked up in tables of those known to treat examples separately
(``function_table``, ``layers``). If anything is not in the tables, gradients are computed one
example at a time.

The copy takes the same path as the model will: there are no values to branch on, any use of the
number of examples other than as a size is refused, and so are random numbers drawn outside of
torch's layers, and forward passes that write attributes, buffers or variables. Two runs with
different numbers of examples must call the same functions with the same arguments. Not covered is
code that keeps state elsewhere, such as in a file or in an attribute of another Python module.
"""

from pacdp.clipping.separation.analysis import find_mixing
from pacdp.clipping.separation.state import ModelState

__all__ = ["ModelState", "find_mixing"]
