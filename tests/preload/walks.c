/* Walks by fts, requests by aio, and all functions of the exec family. `walks DIR` runs all, once in DIR and once with DIR as the
 * current directory; every check says where it failed. */
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)
#define FAILS(call, expected) do { errno = 0; CHECK((call) == -1); CHECK(errno == (expected)); } while (0)

extern char **environ;

static void make(const char *name, const char *text, mode_t mode) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, mode);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

/* What a walk finds, as text: kind, level, name, path without what is before the tree. */
static char *walk(char *const roots[], int options, int instruction_for_d, char *said) {
    *said = 0;
    FTS *fts = fts_open(roots, options, by_name);
    CHECK(fts != NULL);
    FTSENT *entry;
    while ((errno = 0, entry = fts_read(fts)) != NULL) {
        char *place = strstr(entry->fts_path, "tree");
        CHECK(place != NULL && strlen(entry->fts_path) == entry->fts_pathlen && strlen(entry->fts_name) == entry->fts_namelen);
        CHECK(entry->fts_info == FTS_NS || entry->fts_info == FTS_NSOK || entry->fts_info == FTS_SLNONE || access(entry->fts_accpath, F_OK) == 0 || entry->fts_info == FTS_SL);
        said += sprintf(said, "%d:%d:%s:%s ", entry->fts_info, entry->fts_level, entry->fts_name, place);
        if (instruction_for_d && entry->fts_info == FTS_D && strcmp(entry->fts_name, "d") == 0) {
            CHECK(fts_set(fts, entry, instruction_for_d) == 0);
            instruction_for_d = instruction_for_d == FTS_AGAIN ? 0 : instruction_for_d;
        }
        if (instruction_for_d == FTS_FOLLOW && (entry->fts_info == FTS_SL)) CHECK(fts_set(fts, entry, FTS_FOLLOW) == 0);
    }
    CHECK(errno == 0);
    CHECK(fts_close(fts) == 0);
    return said;
}

static void walks(const char *root) {
    static char said[10000];
    char tree[300], missing[300], other[300];
    snprintf(tree, sizeof tree, "%s/tree", root), snprintf(missing, sizeof missing, "%s/tree-not", root);
    snprintf(other, sizeof other, "%s/tree/d/", root);
    char name[400];
    CHECK(mkdir(tree, 0755) == 0);
    snprintf(name, sizeof name, "%s/d", tree); CHECK(mkdir(name, 0755) == 0);
    snprintf(name, sizeof name, "%s/e", tree); CHECK(mkdir(name, 0755) == 0);
    snprintf(name, sizeof name, "%s/d/f", tree), make(name, "text", 0644);
    snprintf(name, sizeof name, "%s/g", tree), make(name, "more", 0644);
    snprintf(name, sizeof name, "%s/link", tree); CHECK(symlink("d", name) == 0);
    snprintf(name, sizeof name, "%s/none", tree); CHECK(symlink("nothing", name) == 0);
    snprintf(name, sizeof name, "%s/d/up", tree); CHECK(symlink("..", name) == 0);
    char *one[] = {tree, NULL}, *two[] = {other, missing, NULL};
    walk(one, FTS_PHYSICAL, 0, said), puts(said);
    walk(one, FTS_PHYSICAL | FTS_NOCHDIR | FTS_SEEDOT, 0, said), puts(said);
    walk(one, FTS_PHYSICAL | FTS_NOSTAT | FTS_NOCHDIR, 0, said), puts(said);
    walk(one, FTS_LOGICAL, 0, said), puts(said);
    walk(one, FTS_PHYSICAL | FTS_XDEV, FTS_SKIP, said), puts(said);
    walk(one, FTS_PHYSICAL, FTS_AGAIN, said), puts(said);
    walk(one, FTS_PHYSICAL, FTS_FOLLOW, said), puts(said);
    walk(two, FTS_PHYSICAL | FTS_COMFOLLOW, 0, said), puts(said);
    FTS *fts = fts_open(one, FTS_PHYSICAL, by_name);
    FTSENT *entry = fts_children(fts, 0);
    CHECK(entry != NULL && entry->fts_link == NULL && entry->fts_level == FTS_ROOTLEVEL);
    CHECK(fts_read(fts) == entry && entry->fts_info == FTS_D && entry->fts_statp->st_nlink == 4);
    int count = 0;
    for (FTSENT *child = fts_children(fts, FTS_NAMEONLY); child; child = child->fts_link) count++;
    CHECK(count == 5 && fts_read(fts) != NULL && fts_close(fts) == 0);
    CHECK((fts = fts_open(one, FTS_PHYSICAL, by_name)) != NULL && fts_read(fts) != NULL);
    count = 0;
    for (FTSENT *child = fts_children(fts, 0); child; child = child->fts_link) {
        count++;
        if (child->fts_info == FTS_D) fts_set(fts, child, FTS_SKIP);
    }
    CHECK(count == 5 && fts_children(fts, 7) == NULL && errno == EINVAL);
    count = 0;
    while (fts_read(fts)) count++;
    CHECK(count == 6); /* the first directory twice and without what is in it, the second not at all, the root once more */
    CHECK(fts_read(fts) == NULL && fts_close(fts) == 0);
    CHECK((fts = fts_open(one, FTS_PHYSICAL, NULL)) != NULL && fts_close(fts) == 0);
    CHECK((fts = fts_open(two, FTS_PHYSICAL, NULL)) != NULL && fts_read(fts) && fts_read(fts) && fts_read(fts) && fts_close(fts) == 0);
    char *empty[] = {tree, "", NULL};
    CHECK(fts_open(empty, FTS_PHYSICAL, NULL) == NULL && errno == ENOENT);
    CHECK(fts_open(one, 0x1000, NULL) == NULL && errno == EINVAL);
    CHECK(fchmodat(AT_FDCWD, tree, 0750, AT_SYMLINK_NOFOLLOW) == 0);
    FAILS(fchmodat(AT_FDCWD, name, 0750, AT_SYMLINK_NOFOLLOW), EOPNOTSUPP);
    struct stat status;
    CHECK(stat(tree, &status) == 0 && (status.st_mode & 0777) == 0750);
}

static volatile sig_atomic_t signals, code, told;
static volatile int in_thread;

static void on_signal(int number, siginfo_t *info, void *context) {
    signals++, code = info->si_code, told = info->si_value.sival_int;
}

static void on_thread(union sigval value) { __atomic_store_n(&in_thread, value.sival_int, __ATOMIC_SEQ_CST); }

static int outcome(struct aiocb *request) {
    const struct aiocb *list[] = {NULL, request};
    while (aio_error(request) == EINPROGRESS) CHECK(aio_suspend(list, 2, NULL) == 0 || errno == EINTR);
    CHECK(aio_suspend(list, 2, NULL) == 0);
    return aio_return(request);
}

static void asynchronous(void) {
    char text[] = "asynchronously", room[32] = "", local[8] = "";
    int fd = open("aio", O_RDWR | O_CREAT | O_TRUNC, 0644), elsewhere = fileno(tmpfile());
    CHECK(fd >= 0 && elsewhere >= 0);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    struct aiocb put = {.aio_fildes = fd, .aio_buf = text, .aio_nbytes = 14, .aio_offset = 3, .aio_lio_opcode = LIO_WRITE};
    put.aio_sigevent.sigev_notify = SIGEV_SIGNAL, put.aio_sigevent.sigev_signo = SIGUSR2, put.aio_sigevent.sigev_value.sival_int = 41;
    CHECK(aio_write(&put) == 0 && outcome(&put) == 14 && lseek(fd, 0, SEEK_CUR) == 0);
    while (signals == 0) usleep(1000);
    CHECK(signals == 1 && code == SI_ASYNCIO && told == 41);
    struct aiocb get = {.aio_fildes = fd, .aio_buf = room, .aio_nbytes = sizeof room, .aio_lio_opcode = LIO_READ};
    get.aio_sigevent.sigev_notify = SIGEV_THREAD, get.aio_sigevent.sigev_notify_function = on_thread, get.aio_sigevent.sigev_value.sival_int = 42;
    CHECK(aio_read(&get) == 0 && outcome(&get) == 17 && memcmp(room, "\0\0\0asynchronously", 17) == 0);
    while (__atomic_load_n(&in_thread, __ATOMIC_SEQ_CST) != 42) usleep(1000);
    CHECK(aio_cancel(fd, &get) == AIO_ALLDONE && aio_cancel(fd, NULL) == AIO_ALLDONE);
    struct aiocb sync = {.aio_fildes = fd};
    sync.aio_sigevent.sigev_notify = SIGEV_NONE;
    CHECK(aio_fsync(O_SYNC, &sync) == 0 && outcome(&sync) == 0);
    FAILS(aio_fsync(77, &sync), EINVAL);
    /* What fails, says so later. */
    struct aiocb bad = {.aio_fildes = fd, .aio_buf = room, .aio_nbytes = 1, .aio_offset = -1, .aio_lio_opcode = LIO_READ};
    bad.aio_sigevent.sigev_notify = SIGEV_NONE;
    CHECK(aio_read(&bad) == 0 && outcome(&bad) == -1 && aio_error(&bad) == EINVAL);
    int only = open("aio", O_RDONLY);
    struct aiocb refused = {.aio_fildes = only, .aio_buf = text, .aio_nbytes = 1};
    refused.aio_sigevent.sigev_notify = SIGEV_NONE;
    CHECK(aio_write(&refused) == 0 && outcome(&refused) == -1);
    bad.aio_reqprio = -1;
    FAILS(aio_read(&bad), EINVAL);
    bad.aio_reqprio = 0;
    /* A list with files of both sides. */
    put.aio_sigevent.sigev_notify = get.aio_sigevent.sigev_notify = SIGEV_NONE;
    struct aiocb there = {.aio_fildes = elsewhere, .aio_buf = text, .aio_nbytes = 5, .aio_lio_opcode = LIO_WRITE};
    there.aio_sigevent.sigev_notify = SIGEV_NONE;
    struct aiocb nothing = {.aio_fildes = fd, .aio_lio_opcode = LIO_NOP};
    struct aiocb *list[] = {&put, NULL, &there, &nothing, &get};
    put.aio_offset = 0;
    CHECK(lio_listio(LIO_WAIT, list, 5, NULL) == 0 && outcome(&put) == 14 && outcome(&there) == 5 && outcome(&get) == 17);
    CHECK(pread(elsewhere, local, 8, 0) == 5 && memcmp(local, "async", 5) == 0 && memcmp(room, "asynchronouslysly", 17) == 0);
    struct sigevent all = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    struct aiocb *ours[] = {&get};
    CHECK(lio_listio(LIO_NOWAIT, ours, 1, &all) == 0 && outcome(&get) == 17);
    while (signals < 2) usleep(1000);
    struct aiocb *failing[] = {&get, &bad};
    FAILS(lio_listio(LIO_WAIT, failing, 2, NULL), EIO);
    CHECK(aio_error(&get) == 0 && aio_error(&bad) == EINVAL);
    close(fd), close(only), close(elsewhere);
}

static void started(pid_t pid, const char *expected) {
    int status;
    char said[100] = "";
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    int fd = open("said", O_RDONLY);
    CHECK(fd >= 0 && read(fd, said, 99) >= 0 && unlink("said") == 0);
    if (strcmp(said, expected)) fprintf(stderr, "`%s`, not `%s`\n", said, expected), exit(1);
    close(fd);
}

#define STARTS(call, expected) do { pid_t pid = fork(); if (pid == 0) { call; perror(#call); _exit(9); } started(pid, expected); } while (0)

/* Each way to execute: in the same directory, with an environment or without, by name, by path, by descriptor, many arguments. */
static void executed(void) {
    char *e[200] = {"A=b"}, *list[] = {"sh", "-c", "echo list $A $0 $1 > said", "x", "y", NULL};
    char path[4096];
    for (int from = 0, to = 1; environ[from] && to < 199; from++) if (strncmp(environ[from], "A=", 2)) e[to++] = environ[from];
    CHECK(getcwd(path, 4000) != NULL && setenv("A", "outer", 1) == 0);
    make("script", "#!/bin/sh\necho script $A $1 $2 > said\n", 0755);
    make("plain", "echo plain $A $1 > said\n", 0755);
    CHECK(symlink("script", "to-script") == 0);
    STARTS(execl("/bin/sh", "sh", "-c", "echo $A > said", NULL), "outer\n");
    STARTS(execl("./script", "script", "one", "two", NULL), "script outer one two\n");
    STARTS(execl("/bin/sh", "sh", "-c", "echo $* > said", "0", "1", "2", "3", "4", "5", "6", "7", "8", NULL), "1 2 3 4 5 6 7 8\n");
    STARTS(execlp("sh", "sh", "-c", "echo p $A > said", NULL), "p outer\n");
    STARTS((setenv("PATH", path, 1), execlp("script", "script", "1", NULL)), "script outer 1\n");
    STARTS(execlp("./plain", "plain", "1", NULL), "plain outer 1\n");
    STARTS(execle("/bin/sh", "sh", "-c", "echo e $A > said", NULL, e), "e b\n");
    STARTS(execle("./script", "script", "1", NULL, e), "script b 1\n");
    STARTS(execv("/bin/sh", list), "list outer x y\n");
    STARTS(execvpe("sh", list, e), "list b x y\n");
    STARTS(execvp("./plain", list), "plain outer -c\n");
    STARTS(syscall(SYS_execve, "/bin/sh", list, e), "list b x y\n");
    STARTS(execveat(AT_FDCWD, "script", list, e, 0), "script b -c echo list $A $0 $1 > said\n");
    int here = open(".", O_RDONLY | O_DIRECTORY), bin = open("/bin", O_PATH | O_DIRECTORY);
    STARTS(execveat(here, "script", list, e, 0), "script b -c echo list $A $0 $1 > said\n");
    STARTS(execveat(bin, "sh", list, e, 0), "list b x y\n");
    int script = open("script", O_RDONLY), sh = open("/bin/sh", O_RDONLY);
    CHECK(here >= 0 && bin >= 0 && script >= 0 && sh >= 0);
    STARTS(fexecve(sh, list, e), "list b x y\n");
    STARTS(execveat(sh, "", list, e, AT_EMPTY_PATH), "list b x y\n");
    CHECK(rename("script", "renamed") == 0 && rename("renamed", "script") == 0);
    STARTS(fexecve(script, list, e), "script b -c echo list $A $0 $1 > said\n");
    STARTS(execveat(script, "", list, e, AT_EMPTY_PATH), "script b -c echo list $A $0 $1 > said\n");
    FAILS(execveat(here, "to-script", list, e, AT_SYMLINK_NOFOLLOW), ELOOP);
    FAILS(execl("./nothing", "x", NULL), ENOENT);
    FAILS(execlp("no-such-program", "x", NULL), ENOENT);
    FAILS(execle("./said", "x", NULL, e), ENOENT);
    FAILS(execveat(here, "plain", list, e, 0), ENOEXEC);
    /* A spawned program begins where it is told. */
    posix_spawn_file_actions_t actions;
    pid_t pid;
    char *shown[] = {"sh", "-c", "pwd > ../said; echo x > made", NULL};
    CHECK(mkdir("begin", 0755) == 0 && posix_spawn_file_actions_init(&actions) == 0);
    int begin = open("begin", O_RDONLY | O_DIRECTORY);
    strcat(path, "/begin\n");
    CHECK(posix_spawn_file_actions_addchdir_np(&actions, "begin") == 0);
    CHECK(posix_spawnp(&pid, "sh", &actions, NULL, shown, environ) == 0);
    started(pid, path);
    CHECK(access("begin/made", F_OK) == 0 && posix_spawn_file_actions_destroy(&actions) == 0 && unlink("begin/made") == 0);
    CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_addfchdir_np(&actions, begin) == 0);
    CHECK(posix_spawn(&pid, "/bin/sh", &actions, NULL, shown, environ) == 0);
    started(pid, path);
    CHECK(access("begin/made", F_OK) == 0);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0 && posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addchdir_np(&actions, "/") == 0);
    char *root[] = {"sh", "-c", "pwd >&3", NULL};
    int said = open("said", O_WRONLY | O_CREAT, 0644);
    CHECK(said == 3 || dup2(said, 3) == 3);
    CHECK(posix_spawn(&pid, "/bin/sh", &actions, NULL, root, environ) == 0);
    started(pid, "/\n");
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
}

static void times(void) {
    struct timeval both[2] = {{100, 0}, {200, 5}};
    struct stat status;
    int fd = open("times", O_RDWR | O_CREAT, 0644);
    CHECK(futimesat(fd, NULL, both) == 0 && fstat(fd, &status) == 0 && status.st_mtime == 200 && status.st_mtim.tv_nsec == 5000);
    close(fd);
}

/* Calls by their numbers, as programs make them that know more than libc. */
static void numbered(void) {
    struct { unsigned long long flags, mode, resolve; } how = {O_RDWR | O_CREAT, 0640, 0};
    struct timespec both[2] = {{7, 0}, {8, 0}};
    struct stat status;
    char target[9] = "";
    int fd = syscall(SYS_openat2, AT_FDCWD, "numbered", &how, sizeof how);
    CHECK(fd >= 0 && write(fd, "x", 1) == 1 && symlink("numbered", "named") == 0);
    CHECK(syscall(SYS_utimensat, fd, NULL, both, 0) == 0 && fstat(fd, &status) == 0 && status.st_mtime == 8 && (status.st_mode & 0777) == 0640);
    CHECK(syscall(SYS_readlinkat, AT_FDCWD, "named", target, 9) == 8 && memcmp(target, "numbered", 8) == 0);
    CHECK(close(fd) == 0);
}

/* What was written in one mapping is in the next, and in the file after fsync. */
static void mapped(void) {
    char read_back[5] = "";
    int fd = open("mapped", O_RDWR | O_CREAT, 0644);
    CHECK(fd >= 0 && ftruncate(fd, 5000) == 0);
    char *one = mmap(NULL, 5000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(one != MAP_FAILED && close(fd) == 0);
    memcpy(one + 4094, "text", 4);
    CHECK((fd = open("mapped", O_RDWR)) >= 0);
    char *two = mmap(NULL, 5000, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(two != MAP_FAILED && memcmp(two + 4094, "text", 4) == 0);
    memcpy(one, "first", 5);
    CHECK(fsync(fd) == 0 && pread(fd, read_back, 5, 0) == 5 && memcmp(read_back, "first", 5) == 0);
    CHECK(munmap(one, 5000) == 0 && munmap(two, 5000) == 0 && close(fd) == 0);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    setvbuf(stdout, NULL, _IONBF, 0);
    close(3);
    walks(arguments[1]);
    CHECK(chdir(arguments[1]) == 0 && system("rm -r tree") == 0);
    walks(".");
    asynchronous();
    times();
    numbered();
    mapped();
    executed();
    puts("all of it holds");
    return 0;
}
