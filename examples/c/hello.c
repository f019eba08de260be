/*
 * Writes a greeting to a Weft file system and reads it back.
 *
 *     cc hello.c $(pkg-config --cflags --libs weft) -o hello
 *     ./hello weft://127.0.0.1:7000/
 */
#include <stdio.h>
#include <string.h>
#include <weft.h>

static int failed(const char *what) {
    fprintf(stderr, "hello: %s: %s\n", what, weft_last_error());
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s weft://HOST:PORT/\n", argv[0]);
        return 2;
    }
    weft_fs *fs = weft_connect(argv[1], NULL);
    if (fs == NULL)
        return failed("connect");

    const char greeting[] = "Hello, striped world!\n";
    weft_file *file = weft_creat(fs, "/hello.txt", 0644, NULL);
    if (file == NULL)
        return failed("create");
    if (weft_pwrite(file, greeting, strlen(greeting), 0) < 0)
        return failed("write");

    char back[64];
    ssize_t bytes = weft_pread(file, back, sizeof back, 0);
    if (bytes < 0)
        return failed("read");
    fwrite(back, 1, (size_t)bytes, stdout);

    struct weft_layout layout;
    if (weft_fget_layout(file, &layout) == 0)
        printf("/hello.txt: strips of %u bytes over %u servers\n", layout.strip_bytes, (unsigned)layout.server_count);
    if (weft_close(file) < 0)
        return failed("close");
    return weft_disconnect(fs) < 0 ? failed("disconnect") : 0;
}
