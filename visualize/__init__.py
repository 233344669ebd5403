"""Pictures of a trace: one layout (``layout``), several writers (``svg``, ``terminal``, ``png``).

``write.write_chart`` chooses the writer by a file's suffix.
"""
