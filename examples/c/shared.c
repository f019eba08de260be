/*
 * One process opens a file, and eight others read it: each a part, through the open file that the first one passes to them.
 *
 *     cc shared.c $(pkg-config --cflags --libs weft) -o shared
 *     ./shared weft://127.0.0.1:7000/
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft.h>

enum { READERS = 8, PART_BYTES = 100000 };

static int failed(const char *what) {
    fprintf(stderr, "shared: %s: %s\n", what, weft_last_error());
    return 1;
}

static unsigned char byte_at(size_t offset) {
    return (unsigned char)(offset * 31 + offset / 251);
}

/* A reader: gets the description of the open file from a pipe, and reads its part. */
static int read_part(const char *url, int reader, int from_opener) {
    char description[WEFT_FILE_EXPORT_MAX];
    if (read(from_opener, description, sizeof description) != sizeof description)
        return 1; /* the opener has failed, and said so */
    weft_fs *fs = weft_connect(url, NULL);
    if (fs == NULL)
        return failed("connect");
    weft_file *file = weft_file_import(fs, description, sizeof description);
    if (file == NULL)
        return failed("import");
    static unsigned char part[PART_BYTES];
    size_t offset = (size_t)reader * PART_BYTES;
    if (weft_pread(file, part, PART_BYTES, (off_t)offset) != PART_BYTES)
        return failed("read");
    for (size_t at = 0; at < PART_BYTES; at++)
        if (part[at] != byte_at(offset + at))
            return 1;
    if (weft_close(file) < 0)
        return failed("close");
    return weft_disconnect(fs) < 0 ? failed("disconnect") : 0;
}

/* The opener: makes the file, opens it, and describes the open file to the readers. */
static int open_file(const char *url, char description[WEFT_FILE_EXPORT_MAX]) {
    weft_fs *fs = weft_connect(url, NULL);
    if (fs == NULL)
        return failed("connect");
    weft_file *file = weft_creat(fs, "/shared.dat", 0600, NULL);
    static unsigned char data[READERS * PART_BYTES];
    for (size_t at = 0; at < sizeof data; at++)
        data[at] = byte_at(at);
    if (file == NULL || weft_pwrite(file, data, sizeof data, 0) < 0 || weft_close(file) < 0)
        return failed("write");
    file = weft_open(fs, "/shared.dat", O_RDONLY, 0);
    if (file == NULL || weft_file_export(file, description, WEFT_FILE_EXPORT_MAX) < 0)
        return failed("export");
    /* The readers have it open by themselves. */
    return weft_close(file) < 0 || weft_disconnect(fs) < 0 ? failed("close") : 0;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s weft://HOST:PORT/\n", argv[0]);
        return 2;
    }
    int pipes[READERS][2];
    for (int reader = 0; reader < READERS; reader++) {
        if (pipe(pipes[reader]) < 0)
            return perror("shared: pipe"), 1;
        pid_t child = fork();
        if (child < 0)
            return perror("shared: fork"), 1;
        if (child == 0) {
            for (int other = 0; other <= reader; other++)
                close(pipes[other][1]);
            _exit(read_part(argv[1], reader, pipes[reader][0]));
        }
        close(pipes[reader][0]);
    }
    char description[WEFT_FILE_EXPORT_MAX] = {0};
    int status = open_file(argv[1], description);
    for (int reader = 0; reader < READERS; reader++) {
        if (status == 0 && write(pipes[reader][1], description, sizeof description) != sizeof description)
            status = 1;
        close(pipes[reader][1]);
    }
    int done = 0, ended;
    while (wait(&ended) > 0)
        done += ended == 0;
    printf("%d of %d processes have read their parts of /shared.dat\n", done, READERS);
    return status != 0 || done != READERS;
}
