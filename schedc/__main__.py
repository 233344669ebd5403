"""``python -m schedc``."""

from schedc.cli.main import main

main()
