"""`python3 -I FOLDER`: what the sandbox image starts. Isolated mode leaves this folder alone on the path of imports."""

import sys

from runner import main

main(sys.argv[1:])
