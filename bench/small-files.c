/* Files of few bytes, made, read and removed by processes of a directory each, by Weft's own calls or by the
 * system's: small-files URL|DIRECTORY PROCESSES FILES BYTES. Prints thousands of files per second of each phase. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <weft.h>

enum phase { MAKE, READ, REMOVE, PHASES };

static weft_fs *fs;
static char *bytes;
static size_t count;

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "%s %s: %s\n", what, path, fs ? weft_last_error() : strerror(0));
    exit(1);
}

static void by_weft(enum phase phase, const char *path)
{
    weft_file *file;
    if (phase == REMOVE) {
        if (weft_unlink(fs, path))
            fail("unlink", path);
        return;
    }
    file = weft_open(fs, path, phase == MAKE ? O_RDWR | O_CREAT : O_RDONLY, 0644);
    if (!file)
        fail("open", path);
    if ((phase == MAKE ? weft_pwrite(file, bytes, count, 0) : weft_pread(file, bytes, count, 0)) != (ssize_t)count)
        fail("move the bytes of", path);
    if (weft_close(file))
        fail("close", path);
}

static void by_system(enum phase phase, const char *path)
{
    int file;
    if (phase == REMOVE) {
        if (unlink(path))
            fail("unlink", path);
        return;
    }
    file = open(path, phase == MAKE ? O_RDWR | O_CREAT : O_RDONLY, 0644);
    if (file < 0)
        fail("open", path);
    if ((phase == MAKE ? pwrite(file, bytes, count, 0) : pread(file, bytes, count, 0)) != (ssize_t)count)
        fail("move the bytes of", path);
    if (close(file))
        fail("close", path);
}

/* Waits for a byte of `gate`, so that all begin at once. */
static void work(const char *place, int process, int files, enum phase phase, int gate)
{
    int is_weft = strstr(place, "://") != NULL;
    char directory[3000], path[4000], go;
    if (is_weft && !(fs = weft_connect(place, NULL)))
        fail("connect to", place);
    snprintf(directory, sizeof directory, "%s/d%d", is_weft ? "" : place, process);
    if (is_weft)
        weft_mkdir(fs, directory, 0755);
    else
        mkdir(directory, 0755);
    if (read(gate, &go, 1) != 1)
        fail("begin with", directory);
    for (int file = 0; file < files; file++) {
        snprintf(path, sizeof path, "%s/%d", directory, file);
        (is_weft ? by_weft : by_system)(phase, path);
    }
    if (is_weft)
        weft_disconnect(fs);
    exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return fprintf(stderr, "usage: small-files URL|DIRECTORY PROCESSES FILES BYTES\n"), 2;
    int processes = atoi(argv[2]), files = atoi(argv[3]);
    count = (size_t)atol(argv[4]);
    bytes = calloc(1, count + 1);
    for (int phase = MAKE; phase < PHASES; phase++) {
        struct timespec begin, end;
        int gate[2], failed = 0;
        if (pipe(gate))
            return 1;
        for (int process = 0; process < processes; process++)
            if (fork() == 0)
                work(argv[1], process, files, phase, gate[0]);
        usleep(200 * 1000); /* until all have connected */
        clock_gettime(CLOCK_MONOTONIC, &begin);
        for (int process = 0; process < processes; process++)
            if (write(gate[1], "", 1) != 1)
                return 1;
        for (int process = 0; process < processes; process++) {
            int status;
            wait(&status);
            failed |= status;
        }
        clock_gettime(CLOCK_MONOTONIC, &end);
        if (failed)
            return 1;
        double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
        printf("%.3f%c", processes * files / seconds / 1000, phase == REMOVE ? '\n' : ' ');
        fflush(stdout); /* a child would print it again */
        close(gate[0]);
        close(gate[1]);
    }
    return 0;
}
