/* Moves the same bytes by system calls, or with -DNATIVE by Weft's own calls: `preload PATH MIB` prints MiB/s of 1 MiB writes and reads one
 * after the other, and the median of 4 KiB reads from anywhere in microseconds. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef NATIVE
#include "weft.h"
#endif

#define MIB (1 << 20)
#define SMALL 4096
#define ROUNDS 10000

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void must(int good, const char *what) {
    if (!good) perror(what), exit(1);
}

static int ascending(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return difference < 0 ? -1 : difference > 0;
}

int main(int count, char **words) {
    must(count == 3, "preload PATH MIB");
    long mib = atol(words[2]);
    char *buffer = aligned_alloc(SMALL, MIB);
    memset(buffer, 1, MIB);
#ifdef NATIVE
    weft_fs *fs = weft_connect(getenv("WEFT_URL"), NULL);
    must(fs != NULL, "connect");
    weft_file *file = weft_open(fs, words[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    must(file != NULL, "open");
#define READ(bytes, offset) weft_pread(file, buffer, bytes, offset)
#define WRITE(bytes, offset) weft_pwrite(file, buffer, bytes, offset)
#else
    int file = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    must(file >= 0, "open");
#define READ(bytes, offset) pread(file, buffer, bytes, offset)
#define WRITE(bytes, offset) pwrite(file, buffer, bytes, offset)
#endif
    double begin = now();
    for (long at = 0; at < mib; at++) must(WRITE(MIB, at * MIB) == MIB, "write");
    double written = now();
    for (long at = 0; at < mib; at++) must(READ(MIB, at * MIB) == MIB, "read");
    double read = now();
    static double times[ROUNDS];
    uint64_t draw = 1;
    for (int round = 0; round < ROUNDS; round++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        double start = now();
        must(READ(SMALL, (off_t)((draw >> 33) % (mib * (MIB / SMALL))) * SMALL) == SMALL, "read");
        times[round] = (now() - start) * 1e6;
    }
    qsort(times, ROUNDS, sizeof *times, ascending);
    printf("%.0f %.0f %.2f\n", mib / (written - begin), mib / (read - written), times[ROUNDS / 2]);
    return 0;
}
