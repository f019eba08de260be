/* All functions of stdio that take a stream, on a stream of a file in the current directory. `stdio` prints for each case what the
 * functions returned and what the file has afterwards, and `stdio wide` the same for wide characters. A case that is killed says so. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <mntent.h>
#include <pwd.h>
#include <shadow.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wchar.h>

#define TEXT "one 1\ntwo 22\nthree 333\n"

static int to;

/* Never by a stream: the standard ones may be what is tested. */
static void say(const char *format, ...) {
    char line[1000];
    va_list values;
    va_start(values, format);
    int bytes = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (write(to, line, bytes) != bytes) _exit(9);
}

#define SAY(call) (errno = 0, say("  %s: %ld\n", #call, (long)(call)))
#define POINTER(call) (errno = 0, say("  %s: %s\n", #call, (call) != NULL ? "there" : strerrorname_np(errno)))
#define ERRNO(call) (errno = 0, say_errno(#call, (long)(call)))

static void say_errno(const char *call, long got) { say("  %s: %ld %s\n", call, got, errno ? strerrorname_np(errno) : "-"); }

static void put(const char *name, const char *text) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0) say("cannot write %s\n", name);
}

static void shown(const char *name) {
    char text[500] = "";
    int fd = open(name, O_RDONLY);
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    for (ssize_t at = 0; at < bytes; at++) if (!isprint((unsigned char)text[at])) text[at] = text[at] == '\n' ? '|' : '?';
    say("  %s has %zd: %s\n", name, bytes, text);
}

static FILE *opened(const char *mode) {
    put("f", TEXT);
    FILE *f = fopen("f", mode);
    if (f == NULL) say("cannot open as %s: %m\n", mode);
    return f;
}

static char text[100];

static void reading(void) {
    FILE *f = opened("r");
    SAY(fgetc(f)), SAY(getc(f)), SAY(fgetc_unlocked(f)), SAY(getc_unlocked(f));
    SAY(ungetc('Z', f)), SAY(ungetc('Y', f)), SAY(ungetc(EOF, f)), SAY(fgetc(f)), SAY(fgetc(f)), SAY(ftell(f));
    POINTER(fgets(text, sizeof text, f)), say("  %s", text);
    POINTER(fgets_unlocked(text, 4, f)), say("  %s\n", text);
    SAY(fread(text, 2, 2, f)), SAY(fread_unlocked(text, 1, 1, f));
    char *line = NULL;
    size_t room = 0;
    SAY(getline(&line, &room, f)), say("  %s", line);
    SAY(getdelim(&line, &room, '3', f)), say("  %s\n", line);
    SAY(getw(f) != EOF), SAY(feof(f)), SAY(feof_unlocked(f)), SAY(ferror(f)), SAY(ferror_unlocked(f));
    SAY(fgetc(f)), SAY(feof(f)), clearerr(f), SAY(feof(f)), SAY(fgetc(f)), clearerr_unlocked(f), SAY(feof(f));
    SAY(getline(&line, &room, f)), rewind(f), SAY(ftell(f)), SAY(fgetc(f));
    ERRNO(fputc('x', f)), SAY(ferror(f)), ERRNO(fwrite("x", 1, 1, f)), ERRNO(fclose(f));
}

static int scan(FILE *f, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int count = vfscanf(f, format, values);
    va_end(values);
    return count;
}

static void scanning(void) {
    FILE *f = opened("r");
    int number = 0;
    SAY(fscanf(f, "%9s %d", text, &number)), say("  %s %d\n", text, number);
    SAY(scan(f, " %9[a-z] %d", text, &number)), say("  %s %d\n", text, number);
    SAY(fscanf(f, "%d", &number)), SAY(fgetc(f)), SAY(fscanf(f, "%*s %d %n", &number, &number)), say("  %d\n", number);
    SAY(fscanf(f, "%d", &number)), SAY(feof(f)), SAY(fclose(f));
}

static void writing(void) {
    FILE *f = opened("w");
    SAY(fputc('a', f)), SAY(putc('b', f)), SAY(fputc_unlocked('c', f)), SAY(putc_unlocked('d', f));
    SAY(fputs("efg", f) >= 0), SAY(fputs_unlocked("hij", f) >= 0), SAY(fwrite("klmn", 2, 2, f)), SAY(fwrite_unlocked("o", 1, 1, f));
    SAY(fprintf(f, "%d-%s-%ls", 7, "eight", L"nine")), SAY(putw(0x31323334, f)), SAY(ftell(f)), shown("f");
    SAY(fflush(f)), shown("f"), SAY(fputc('z', f)), SAY(fflush_unlocked(f)), shown("f");
    SAY(fputs("all", f) >= 0), SAY(fflush(NULL)), shown("f"), _flushlbf();
    ERRNO(fgetc(f)), SAY(ferror(f)), SAY(fclose(f)), shown("f");
}

static void modes(void) {
    const char *all[] = {"r", "r+", "w", "w+", "a", "a+", "rb", "r+b", "rb+", "re", "rm", "rc", "a+x", "wx", "w+x", "z", ""};
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
        put("f", TEXT);
        errno = 0;
        FILE *f = fopen("f", all[at]);
        say("  %s: %s\n", all[at], f != NULL ? "there" : strerrorname_np(errno));
        if (f == NULL) continue;
        int flags = fcntl(fileno(f), F_GETFL);
        say("  %o %d\n", flags & (O_ACCMODE | O_APPEND), fcntl(fileno_unlocked(f), F_GETFD));
        SAY(ftell(f)), ERRNO(fgetc(f)), SAY(fseek(f, 0, SEEK_CUR)), ERRNO(fputc('x', f)), SAY(ftell(f));
        SAY(__freadable(f) != 0), SAY(__fwritable(f) != 0), SAY(__freading(f) != 0), SAY(__fwriting(f) != 0);
        SAY(fseek(f, 2, SEEK_SET)), ERRNO(fgetc(f)), SAY(fclose(f)), shown("f");
    }
}

static void places(void) {
    FILE *f = opened("r+");
    fpos_t here;
    fpos64_t here64;
    SAY(fseek(f, 4, SEEK_SET)), SAY(fgetc(f)), SAY(ftell(f)), SAY(fgetpos(f, &here)), SAY(fgetpos64(f, &here64));
    SAY(fseeko(f, -3, SEEK_END)), SAY(ftello(f)), SAY(fgetc(f)), SAY(fseeko64(f, 1, SEEK_CUR)), SAY(ftello64(f));
    SAY(fgetc(f)), SAY(fgetc(f)), SAY(fsetpos(f, &here)), SAY(feof(f)), SAY(fgetc(f)), SAY(fsetpos64(f, &here64)), SAY(fgetc(f));
    ERRNO(fseek(f, -1, SEEK_SET)), ERRNO(fseek(f, 0, 9)), SAY(fseek(f, 100, SEEK_SET)), SAY(fgetc(f));
    SAY(fseek(f, 3, SEEK_SET)), SAY(fputc('=', f)), SAY(fseek(f, 0, SEEK_CUR)), SAY(fgetc(f)), SAY(fseek(f, 40, SEEK_SET));
    SAY(fputs("beyond", f) >= 0), SAY(ftell(f)), SAY(lseek(fileno(f), 0, SEEK_CUR) <= 46), rewind(f), SAY(fgetc(f)), SAY(fclose(f)), shown("f");
    f = opened("r");
    SAY(fgetc(f)), SAY(fflush(f)), SAY(lseek(fileno(f), 0, SEEK_CUR)), SAY(fgetc(f)), SAY(fclose(f));
}

static void buffers(void) {
    static char own[64];
    for (int kind = 0; kind < 5; kind++) {
        FILE *f = opened("w+");
        if (kind == 0) SAY(setvbuf(f, NULL, _IONBF, 0));
        if (kind == 1) SAY(setvbuf(f, own, _IOLBF, sizeof own));
        if (kind == 2) setbuf(f, NULL);
        if (kind == 3) setbuffer(f, own, sizeof own);
        if (kind == 4) setlinebuf(f);
        ERRNO(setvbuf(f, NULL, 77, 0));
        SAY(fputs("first", f) >= 0), shown("f"), SAY(fputs(" line\nnext", f) >= 0), SAY(__flbf(f) != 0), SAY((long)__fpending(f)), shown("f");
        for (int at = 0; at < 20; at++) fprintf(f, "<%d>", at);
        if (kind == 3) SAY((long)__fbufsize(f));
        SAY(fputs("gone", f) >= 0);
        if (kind != 0 && kind != 2) __fpurge(f);
        SAY(fseek(f, 1, SEEK_SET)), SAY(fgetc(f)), SAY(fclose(f)), shown("f");
    }
}

static void locks(void) {
    FILE *f = opened("r");
    flockfile(f), SAY(ftrylockfile(f)), SAY(fgetc_unlocked(f)), funlockfile(f), funlockfile(f);
    SAY(__fsetlocking(f, FSETLOCKING_BYCALLER)), SAY(__fsetlocking(f, FSETLOCKING_QUERY)), SAY(fgetc(f)), SAY(fclose(f));
}

static void descriptors(void) {
    put("f", TEXT);
    const int access[] = {O_RDONLY, O_WRONLY, O_RDWR};
    const char *all[] = {"r", "w", "a", "r+", "a+", "z"};
    for (int at = 0; at < 18; at++) {
        int fd = open("f", access[at / 6]);
        errno = 0;
        FILE *f = fdopen(fd, all[at % 6]);
        say("  %d %s: %s\n", at / 6, all[at % 6], f != NULL ? "there" : strerrorname_np(errno));
        if (f == NULL) { close(fd); continue; }
        SAY(fileno(f) == fd), SAY((fcntl(fd, F_GETFL) & O_APPEND) != 0), SAY(ftell(f)), ERRNO(fgetc(f)), SAY(fclose(f)), ERRNO(fcntl(fd, F_GETFD));
    }
    shown("f");
    FILE *f = opened("r");
    close(fileno(f));
    ERRNO(fgetc(f)), SAY(ferror(f)), ERRNO(fclose(f));
    f = opened("w");
    SAY(fputs("lost", f) >= 0), close(fileno(f)), ERRNO(fflush(f)), SAY(ferror(f)), ERRNO(fclose(f));
    int flags = fcntl(1, F_GETFD);
    f = opened("w");
    SAY(fputs("kept", f) >= 0), SAY(fcloseall()), SAY(fcntl(1, F_GETFD) == flags), shown("f");
}

/* The program may go on with the old pointer. */
static void reopened(void) {
    put("g", "other\n");
    FILE *f = opened("r");
    SAY(fgetc(f)), SAY(freopen("g", "r", f) == f), SAY(fgetc(f)), SAY(freopen("g", "w", f) == f), SAY(fputs("new", f) >= 0), ERRNO(fgetc(f));
    SAY(freopen("f", "a+", f) == f), SAY(ferror(f)), SAY(fputs("end", f) >= 0), SAY(fseek(f, 0, SEEK_SET)), SAY(fgetc(f)), shown("g");
    SAY(freopen(NULL, "r", f) == f), SAY(fgetc(f)), ERRNO(fputc('x', f)), SAY(freopen(NULL, "w", f) == f), SAY(fputs("again", f) >= 0);
    SAY(fclose(f)), shown("f");
    f = opened("r");
    SAY(freopen("/proc/self/stat", "r", f) == f), SAY(fgetc(f) != EOF), SAY(fclose(f));
    f = opened("r"), POINTER(freopen("missing", "r", f));
    f = opened("r"), POINTER(freopen("f", "z", f));
    f = opened("w"), SAY(fputs("before", f) >= 0), SAY(freopen("/dev/null", "w", f) == f), SAY(fputs("x", f) >= 0), SAY(fclose(f)), shown("f");
}

/* From a local file, where the stream may become another; the old one must not crash. */
static void reopened_local(void) {
    FILE *old = fopen("/dev/null", "r+");
    put("f", TEXT);
    FILE *f = freopen("f", "r+", old);
    SAY(f != NULL), SAY(fgetc(f)), SAY(fseek(f, 0, SEEK_END)), SAY(fputs("more", f) >= 0), SAY(fflush(f)), shown("f");
    fgetc(old), fputc('x', old), fflush(old), clearerr(old);
}

static void standard(void) {
    int number;
    put("f", TEXT);
    POINTER(freopen("f", "r", stdin)), SAY(getchar()), SAY(getchar_unlocked()), SAY(scanf("%*s %d", &number)), say("  %d\n", number);
    SAY(fileno(stdin)), SAY(ungetc('q', stdin)), SAY(getchar());
    POINTER(freopen("g", "w", stdout)), SAY(putchar('a')), SAY(putchar_unlocked('b')), SAY(puts("c") >= 0), SAY(printf("%d", 5)), SAY(fflush(stdout)), shown("g");
    POINTER(freopen("h", "w", stderr)), SAY(fputs("error ", stderr) >= 0), errno = ENOENT, perror("said"), psignal(2, "sig");
    SAY(fflush(stderr)), shown("h");
    POINTER(freopen("/dev/null", "r", stdin)), SAY(getchar()), POINTER(freopen("/dev/null", "w", stdout)), SAY(printf("x")), SAY(fflush(stdout));
    POINTER(freopen("f", "r", stdin)), SAY(getchar()), POINTER(freopen("g", "a", stdout)), SAY(printf("end")), SAY(fflush(stdout)), shown("g");
    SAY(fclose(stdout)), SAY(fclose(stdin));
}

static void memory(void) {
    char room[20], *made = NULL;
    size_t bytes = 0;
    FILE *f = opened("r"), *m = fmemopen(room, sizeof room, "w+"), *o = open_memstream(&made, &bytes);
    SAY(fread(text, 1, 6, f)), SAY(fwrite(text, 1, 6, m)), SAY(fwrite(text, 1, 6, o)), SAY(fseek(m, 0, SEEK_SET)), SAY(fgetc(m));
    SAY(fclose(m)), SAY(fclose(o)), say("  %s", made), SAY(fclose(f));
    FILE *p = popen("cat f; echo of a shell > g", "r");
    POINTER(fgets(text, sizeof text, p)), say("  %s", text);
    while (fgetc(p) != EOF) { }
    SAY(pclose(p)), shown("g");
    p = popen("cat > g", "w"), SAY(fputs("to a shell", p) >= 0), SAY(pclose(p)), shown("g");
}

static void records(void) {
    put("f", "root:x:0:0:all:/root:/bin/sh\nu:x:5:6::/:\n");
    FILE *f = fopen("f", "r");
    POINTER(fgetpwent(f)), SAY(fgetpwent(f)->pw_uid), POINTER(fgetpwent(f)), SAY(fclose(f));
    put("f", "g:x:3:a,b\n"), f = fopen("f", "r"), SAY(fgetgrent(f)->gr_gid), SAY(fclose(f));
    put("f", "u:hash:1:2:3:4:5:6:7\n"), f = fopen("f", "r"), SAY(fgetspent(f)->sp_max), SAY(fclose(f));
    put("f", "dev /dir type opts 1 2\n"), f = fopen("f", "r+");
    struct mntent *entry = getmntent(f);
    say("  %s\n", entry != NULL ? entry->mnt_dir : "none");
    struct mntent added = {"d", "/e", "t", "o", 3, 4};
    SAY(addmntent(f, &added)), SAY(fclose(f)), shown("f");
    struct passwd user = {"n", "p", 1, 2, "g", "d", "s"};
    f = fopen("f", "w"), SAY(putpwent(&user, f)), SAY(fclose(f)), shown("f");
}

/* More than any buffer, and what is left in one at the end of the program. */
static void large(void) {
    FILE *f = opened("w+");
    unsigned sum = 0, read_sum = 0;
    for (int at = 0; at < 300000; at++) sum = sum * 31 + (at % 251), fputc(at % 251, f);
    rewind(f);
    for (int at = 0; at < 300000; at++) read_sum = read_sum * 31 + fgetc(f);
    SAY(sum == read_sum), SAY(fgetc(f)), SAY(fseek(f, 150000, SEEK_SET)), SAY(fgetc(f) == 150000 % 251), SAY(ftell(f));
    static char block[200000];
    rewind(f), SAY(fread(block, 1, sizeof block, f)), SAY(ftell(f)), SAY(fread(block, 7, 28000, f)), SAY(feof(f)), SAY(fclose(f));
    f = opened("w"), SAY(fputs("left at the end", f) >= 0);
    if (fork() == 0) exit(0);
    int status;
    wait(&status), shown("f");
}

/* The functions themselves, where the compiler would take the checked ones. */
static int (*volatile plain)(int, const char *, ...) = dprintf;
static int (*volatile plain_list)(int, const char *, va_list) = vdprintf;

static int print(int fd, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int bytes = vdprintf(fd, format, values);
    va_end(values);
    va_start(values, format);
    bytes += plain_list(fd, format, values);
    va_end(values);
    return bytes;
}

/* By the checked functions and by those without checks. */
static void formatted(void) {
    put("f", "");
    int fd = open("f", O_RDWR);
    SAY(dprintf(fd, "none|")), SAY(plain(fd, "none|")), SAY(print(fd, "%d|", 1));
    SAY(plain(fd, "%d %s %g %c %ld %d %d %d %g %g %g %g %g %g %g %g %g %s|", 1, "two", 3.5, '4', 5L, 6, 7, 8, 9., 10., 11., 12., 13., 14., 15., 16., 17., "end"));
    SAY(dprintf(fd, "%d %s %g %c %ld %d %d %d %g %g %g %g %g %g %g %g %g %s|", 1, "two", 3.5, '4', 5L, 6, 7, 8, 9., 10., 11., 12., 13., 14., 15., 16., 17., "end"));
    SAY(print(fd, "%s %Lg %d %d %d %d %d|", "long", 2.5L, 1, 2, 3, 4, 5)), SAY(plain(fd, "%Lg %.*f|", 0.25L, 2, 1.));
    SAY(plain(fd, "%*d|", 300, 7)), close(fd), ERRNO(dprintf(fd, "x")), shown("f");
    fd = open("f", O_RDONLY), ERRNO(plain(fd, "x")), ERRNO(dprintf(fd, "x")), close(fd);
}

static void wide(void) {
    wchar_t line[20];
    FILE *f = opened("r+");
    SAY(fwide(f, 0)), SAY(fwide(f, 1));
    ERRNO((int)fgetwc(f)), ERRNO((int)getwc(f)), ERRNO((int)fgetwc_unlocked(f)), ERRNO((int)getwc_unlocked(f)), ERRNO((int)ungetwc(L'x', f));
    ERRNO(fgetws(line, 20, f) != NULL), ERRNO(fgetws_unlocked(line, 20, f) != NULL);
    ERRNO((int)fputwc(L'x', f)), ERRNO((int)putwc(L'x', f)), ERRNO((int)fputwc_unlocked(L'x', f)), ERRNO((int)putwc_unlocked(L'x', f));
    ERRNO(fputws(L"x", f)), ERRNO(fputws_unlocked(L"x", f));
    SAY(fwprintf(f, L"%d", 1)), SAY(fwscanf(f, L"%d", line));
    SAY(fgetc(f)), SAY(fclose(f)), shown("f");
    POINTER(freopen("f", "r", stdin)), ERRNO((int)getwchar()), ERRNO((int)getwchar_unlocked()), SAY(wscanf(L"%d", line));
    POINTER(freopen("g", "w", stdout)), ERRNO((int)putwchar(L'x')), ERRNO((int)putwchar_unlocked(L'x')), SAY(wprintf(L"x"));
    ERRNO(fopen("f", "r,ccs=UTF-8") != NULL);
}

#define CASE(function) {#function, function}
static const struct { const char *name; void (*run)(void); } CASES[] = {
    CASE(reading), CASE(scanning), CASE(writing), CASE(modes), CASE(places), CASE(buffers), CASE(locks), CASE(descriptors), CASE(reopened),
    CASE(reopened_local), CASE(standard), CASE(memory), CASE(records), CASE(large), CASE(formatted), CASE(wide),
};

int main(int count, char **arguments) {
    int is_wide = count > 1 && strcmp(arguments[1], "wide") == 0;
    to = fcntl(1, F_DUPFD_CLOEXEC, 100);
    for (size_t at = 0; at < sizeof CASES / sizeof *CASES; at++) {
        if ((CASES[at].run == wide) != is_wide) continue;
        say("%s\n", CASES[at].name);
        pid_t child = fork();
        if (child == 0) CASES[at].run(), exit(0);
        int status;
        waitpid(child, &status, 0);
        if (status != 0) say("  ended with %x\n", status);
    }
}
