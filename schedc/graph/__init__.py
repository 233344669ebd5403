"""From a model's configuration to its F, I and W graphs.

``llama`` is the model, ``trace`` cuts it into units, ``joint`` traces a unit's forward and
backward, ``clean`` and ``split`` make three graphs of it, ``emit`` writes them as Python, ``build``
runs all that; ``partition`` makes stages of units. Configurations come from ``schedc.model``.
"""
