"""``torchrun --nproc-per-node N runtime/exec.py build/NAME …``: one rank of a run.

torchrun puts this file's folder first on ``sys.path``; nothing may be imported from there by its
bare name, so the folder is dropped before anything else is imported.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]

from schedc.runtime.launch import main  # noqa: E402

if __name__ == "__main__":
    main()
