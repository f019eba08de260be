/* What a program that LD_PRELOAD does not reach finds: its error, on standard output, or nothing where that is Weft's. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments) {
    char byte;
    if (count == 2 && strcmp(arguments[1], "-") == 0) {
        if (read(0, &byte, 1) < 0) printf("read: %s\n", strerror(errno));
        return 0;
    }
    if (count == 2 && open(arguments[1], O_RDONLY) < 0) printf("open: %s\n", strerror(errno));
    return 0;
}
