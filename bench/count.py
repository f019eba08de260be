"""What bench/count.sh does on a mount: files of 100 bytes made, examined, listed, renamed and removed, and 4 KiB and 1 MiB of a large
one written and read."""

import os
import sys

where = os.path.join(sys.argv[1], "dir")
os.mkdir(where)
os.chdir(where)
for number in range(300):
    with open(str(number), "wb") as file:
        file.write(b"x" * 100)
for number in range(300):
    os.stat(str(number))
os.listdir(".")
large = os.open("large", os.O_CREAT | os.O_RDWR)
for block in range(2000):
    os.pwrite(large, b"y" * 4096, block * 4096)
for block in range(2000):
    os.pread(large, 4096, block * 7919 % 2000 * 4096)
for block in range(16):
    os.pwrite(large, b"z" * (1 << 20), block << 20)
os.close(large)
for number in range(300):
    os.rename(str(number), f"renamed {number}")
for number in range(300):
    os.unlink(f"renamed {number}")
