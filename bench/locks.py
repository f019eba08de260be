"""What bench/count.sh does with locks: COUNT processes wait for exclusive locks of different bytes that overlap, and get them in turn."""

import fcntl
import os
import sys
import time

path, count = sys.argv[1], int(sys.argv[2])
holder = os.open(path, os.O_CREAT | os.O_RDWR)
fcntl.lockf(holder, fcntl.LOCK_EX, count * 2, 0)
children = []
for number in range(count):
    child = os.fork()
    if child == 0:
        mine = os.open(path, os.O_RDWR)
        fcntl.lockf(mine, fcntl.LOCK_EX, count, number)
        fcntl.lockf(mine, fcntl.LOCK_UN, count, number)
        os._exit(0)
    children.append(child)
# All are in the queue by then; what is not waits a little later.
time.sleep(5)
fcntl.lockf(holder, fcntl.LOCK_UN, count * 2, 0)
for child in children:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
