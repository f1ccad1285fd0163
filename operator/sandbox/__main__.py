"""`python3 -I FOLDER`: what the sandbox image starts. Isolated mode leaves this folder alone on the path of imports."""

from start import main

main()
