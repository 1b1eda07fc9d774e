"""``python -m pacdp`` is the command ``pacdp``."""

from pacdp.cli import main

if __name__ == "__main__":
    main()
