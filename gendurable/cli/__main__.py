"""``python -m gendurable.cli`` is the command ``gendurable``."""

from gendurable.cli import main

main(prog_name="gendurable")
