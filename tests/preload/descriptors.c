/* Descriptors of Weft as POSIX has them: shared over dup, fork and exec, in directories, with poll and locks, under signals and threads.
 * `descriptors DIR` runs all; every check says where it failed. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wchar.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)
#define FAILS(call, expected) do { errno = 0; CHECK((call) == -1); CHECK(errno == (expected)); } while (0)

extern char **environ;
static char *self;

static int file(const char *name, const char *text) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    return fd;
}

static void wait_for(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* After exec: reads three bytes of the descriptor, and writes "EXEC" at 20 through a copy. */
static int after_exec(int fd) {
    char buffer[4] = "";
    CHECK(read(fd, buffer, 3) == 3);
    CHECK(strcmp(buffer, "def") == 0);
    CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
    int copy = dup(fd);
    CHECK(pwrite(copy, "EXEC", 4, 20) == 4);
    return 0;
}

static void shared_offsets(void) {
    char buffer[8] = "", number[16];
    int fd = file("shared", "abcdefghijklmnop"), copy = dup(fd), other = open("shared", O_RDONLY);
    CHECK(read(fd, buffer, 3) == 3 && lseek(copy, 0, SEEK_CUR) == 3 && lseek(other, 0, SEEK_CUR) == 0);
    snprintf(number, sizeof number, "%d", fd);
    pid_t pid = fork();
    if (pid == 0) {
        execl(self, self, "after-exec", number, NULL);
        _exit(9);
    }
    wait_for(pid);
    CHECK(lseek(fd, 0, SEEK_CUR) == 6);
    CHECK(pread(fd, buffer, 4, 20) == 4 && memcmp(buffer, "EXEC", 4) == 0);
    CHECK(lseek(fd, 3, SEEK_SET) == 3);
    char *arguments[] = {self, "after-exec", number, NULL};
    CHECK(posix_spawn(&pid, self, NULL, NULL, arguments, environ) == 0);
    wait_for(pid);
    CHECK(lseek(copy, 0, SEEK_CUR) == 6);
    pid = vfork();
    if (pid == 0) _exit(close(fd) != 0);
    wait_for(pid);
    CHECK(read(fd, buffer, 1) == 1 && buffer[0] == 'g');
    pid = fork();
    if (pid == 0) _exit(write(fd, "!", 1) != 1);
    wait_for(pid);
    CHECK(lseek(fd, 0, SEEK_CUR) == 8);
    CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && fcntl(copy, F_GETFD) == 0);
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    CHECK(high >= 100 && fcntl(high, F_GETFD) == FD_CLOEXEC);
    CHECK(dup2(copy, 90) == 90 && close(copy) == 0 && read(90, buffer, 1) == 1 && buffer[0] == 'i');
    FAILS(read(copy, buffer, 1), EBADF);
    FAILS(write(other, buffer, 1), EBADF);
    CHECK(dup3(other, 90, O_CLOEXEC) == 90 && read(90, buffer, 1) == 1 && buffer[0] == 'a');
    close(fd), close(other), close(90), close(high);
}

static void sent(void) {
    int pair[2], fd = file("sent", "over a socket"), got;
    char control[CMSG_SPACE(sizeof(int))] = "", byte = 0, buffer[5] = "";
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(pair[0], &message, 0) == 1);
    CHECK(recvmsg(pair[1], &message, 0) == 1);
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    CHECK(got != fd && read(got, buffer, 4) == 4 && memcmp(buffer, "over", 4) == 0 && lseek(fd, 0, SEEK_CUR) == 4);
    close(pair[0]), close(pair[1]), close(fd), close(got);
}

static void appends_and_vectors(void) {
    char a[3] = "", b[4] = "";
    int fd = open("appended", O_RDWR | O_CREAT | O_APPEND, 0644);
    CHECK(write(fd, "one", 3) == 3 && lseek(fd, 0, SEEK_SET) == 0 && write(fd, "two", 3) == 3);
    CHECK(lseek(fd, 0, SEEK_CUR) == 6 && lseek(fd, -2, SEEK_END) == 4);
    CHECK(fcntl(fd, F_SETFL, 0) == 0 && !(fcntl(fd, F_GETFL) & O_APPEND));
    struct iovec out[] = {{"xy", 2}, {"", 0}, {"zzz", 3}}, in[] = {{a, 2}, {b, 3}};
    CHECK(pwritev(fd, out, 3, 1) == 5);
    CHECK(preadv(fd, in, 2, 1) == 5 && memcmp(a, "xy", 2) == 0 && memcmp(b, "zzz", 3) == 0);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, in, 2) == 5 && a[0] == 'o');
    CHECK(ftruncate(fd, 3) == 0 && lseek(fd, 0, SEEK_END) == 3 && posix_fallocate(fd, 0, 100) == 0);
    struct stat status;
    CHECK(fstat(fd, &status) == 0 && status.st_size == 100 && S_ISREG(status.st_mode) && status.st_dev != 0);
    int left;
    CHECK(lseek(fd, 90, SEEK_SET) == 90 && ioctl(fd, FIONREAD, &left) == 0 && left == 10);
    FAILS(lseek(fd, -1, SEEK_SET), EINVAL);
    CHECK(!isatty(fd) && errno == ENOTTY && fsync(fd) == 0 && fdatasync(fd) == 0);
    close(fd);
}

static void relative_to_directories(void) {
    struct stat status;
    struct statx more;
    char target[16] = "";
    CHECK(mkdir("dir", 0755) == 0);
    int dir = open("dir", O_RDONLY | O_DIRECTORY), here = open(".", O_PATH | O_DIRECTORY);
    CHECK(dir >= 0 && here >= 0 && mkdirat(dir, "sub", 0700) == 0);
    int fd = openat(dir, "sub/file", O_CREAT | O_EXCL | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, "12345", 5) == 5 && close(fd) == 0);
    CHECK(renameat(dir, "sub/file", dir, "file") == 0 && unlinkat(dir, "sub", AT_REMOVEDIR) == 0);
    CHECK(rename("dir", "moved") == 0); /* the descriptor goes with it */
    CHECK(fstatat(dir, "file", &status, 0) == 0 && status.st_size == 5 && (status.st_mode & 0777) == 0600);
    CHECK(statx(dir, "file", 0, STATX_ALL, &more) == 0 && more.stx_size == 5 && more.stx_ino == status.st_ino);
    CHECK(statx(dir, "", AT_EMPTY_PATH, STATX_ALL, &more) == 0 && S_ISDIR(more.stx_mode));
    CHECK(symlinkat("file", dir, "link") == 0 && readlinkat(dir, "link", target, 16) == 4 && strcmp(target, "file") == 0);
    CHECK(fstatat(dir, "link", &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode));
    CHECK(linkat(dir, "file", here, "hard", 0) == 0 && faccessat(here, "hard", R_OK, 0) == 0);
    CHECK(fchmodat(dir, "file", 0644, 0) == 0 && stat("hard", &status) == 0 && (status.st_mode & 0777) == 0644 && status.st_nlink == 2);
    struct timespec times[2] = {{1, 2}, {3, 4}};
    CHECK(utimensat(dir, "file", times, 0) == 0 && stat("hard", &status) == 0 && status.st_mtim.tv_sec == 3 && status.st_mtim.tv_nsec == 4);
    CHECK(openat(dir, "link", O_RDONLY | O_NOFOLLOW) == -1 && errno == ELOOP);
    FAILS(openat(dir, "none", O_RDONLY), ENOENT);
    FAILS(open("hard/x", O_RDONLY), ENOTDIR);
    FAILS(open("moved", O_WRONLY), EISDIR);
    FAILS(mkdir("moved", 0700), EEXIST);
    FAILS(rmdir("moved"), ENOTEMPTY);
    FAILS(read(dir, target, 1), EISDIR);
    DIR *stream = fdopendir(dup(dir));
    int count = 0;
    long second = 0;
    for (struct dirent *entry; (entry = readdir(stream)); count++) if (count == 1) second = telldir(stream);
    CHECK(count == 4); /* . .. file link */
    seekdir(stream, second);
    for (count = 0; readdir(stream); count++) {}
    CHECK(count == 2);
    rewinddir(stream);
    for (count = 0; readdir(stream); count++) {}
    CHECK(count == 4 && closedir(stream) == 0);
    struct dirent **list;
    CHECK(scandir("moved", &list, NULL, alphasort) == 4 && strcmp(list[2]->d_name, "file") == 0 && list[3]->d_type == DT_LNK);
    char before[4096], after[4096];
    CHECK(getcwd(before, sizeof before) && fchdir(dir) == 0 && access("file", F_OK) == 0 && chdir("..") == 0);
    CHECK(getcwd(after, sizeof after) && access("hard", F_OK) == 0);
    char *true_name = realpath("moved/link", NULL);
    CHECK(true_name && strcmp(strrchr(true_name, '/'), "/file") == 0);
    close(dir), close(here);
}

static void waiting(void) {
    int fd = file("waiting", "x"), pipes[2], epoll = epoll_create1(0);
    CHECK(pipe(pipes) == 0);
    struct pollfd list[] = {{fd, POLLIN | POLLOUT, 0}, {pipes[0], POLLIN, 0}};
    CHECK(poll(list, 2, 60000) == 1 && list[0].revents == (POLLIN | POLLOUT) && list[0].fd == fd && list[1].revents == 0);
    fd_set read_set, write_set;
    FD_ZERO(&read_set);
    FD_ZERO(&write_set);
    FD_SET(fd, &read_set);
    FD_SET(pipes[0], &read_set);
    FD_SET(fd, &write_set);
    CHECK(select((fd > pipes[0] ? fd : pipes[0]) + 1, &read_set, &write_set, NULL, NULL) == 2);
    CHECK(FD_ISSET(fd, &read_set) && FD_ISSET(fd, &write_set) && !FD_ISSET(pipes[0], &read_set));
    struct epoll_event event = {.events = EPOLLIN};
    FAILS(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), EPERM);
    close(fd), close(pipes[0]), close(pipes[1]), close(epoll);
}

static void copies(void) {
    char buffer[16] = "";
    int from = file("from", "0123456789"), to = file("to", ""), pipes[2];
    off_t offset = 2;
    CHECK(sendfile(to, from, &offset, 3) == 3 && offset == 5 && sendfile(to, from, NULL, 100) == 10);
    CHECK(pread(to, buffer, 16, 0) == 13 && memcmp(buffer, "2340123456789", 13) == 0);
    CHECK(lseek(from, 8, SEEK_SET) == 8 && lseek(to, 0, SEEK_SET) == 0);
    CHECK(copy_file_range(from, NULL, to, NULL, 10, 0) == 2 && pread(to, buffer, 3, 0) == 3 && memcmp(buffer, "894", 3) == 0);
    int only = open("from", O_RDONLY), dir = open(".", O_RDONLY | O_DIRECTORY), more = open("to", O_WRONLY | O_APPEND);
    off_t start = 0, inside = 2, behind = 10;
    FAILS(copy_file_range(only, &start, dir, &inside, 4, 0), EISDIR);
    FAILS(copy_file_range(dir, &start, to, &inside, 4, 0), EISDIR);
    FAILS(copy_file_range(from, &start, only, &behind, 4, 0), EBADF);
    FAILS(copy_file_range(more, &start, to, &inside, 4, 0), EBADF);
    FAILS(copy_file_range(from, &start, more, &inside, 4, 0), EBADF);
    FAILS(copy_file_range(only, &start, from, &inside, 4, 0), EINVAL);
    CHECK(copy_file_range(only, &start, from, &behind, 100, 0) == 10 && lseek(from, 0, SEEK_END) == 20);
    start = 5, behind = 100;
    CHECK(copy_file_range(only, &start, from, &behind, 100, 0) == 15 && lseek(from, 0, SEEK_END) == 115);
    close(only), close(dir), close(more);
    CHECK(pipe(pipes) == 0);
    ssize_t moved = splice(from, NULL, pipes[1], NULL, 10, 0);
    CHECK(moved >= 0 || errno == EINVAL);
    close(from), close(to), close(pipes[0]), close(pipes[1]);
}

static void memory(void) {
    char buffer[8] = "";
    int fd = file("memory", "mapped bytes"), only = open("memory", O_RDONLY);
    char *private = mmap(NULL, 12, PROT_READ | PROT_WRITE, MAP_PRIVATE, only, 0);
    CHECK(private != MAP_FAILED && memcmp(private, "mapped", 6) == 0 && private[12] == 0);
    private[0] = 'M';
    char *shared = mmap(NULL, 12, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(shared != MAP_FAILED && shared[0] == 'm');
    memcpy(shared, "MAPPED", 6);
    CHECK(msync(shared, 12, MS_SYNC) == 0 && pread(fd, buffer, 6, 0) == 6 && memcmp(buffer, "MAPPED", 6) == 0);
    shared[7] = 'B';
    CHECK(munmap(shared, 12) == 0 && pread(only, buffer, 1, 7) == 1 && buffer[0] == 'B');
    errno = 0;
    CHECK(mmap(NULL, 12, PROT_WRITE, MAP_SHARED, only, 0) == MAP_FAILED && errno == EACCES);
    struct stat status;
    CHECK(munmap(private, 12) == 0 && fstat(fd, &status) == 0 && status.st_size == 12);
    close(fd), close(only);
}

/* A part is unmapped, replaced or protected; the rest is still written back, and nothing else. */
static void parts_of_mappings(void) {
    enum { PAGE = 4096, PAGES = 6 };
    char byte, all[PAGES * PAGE];
    memset(all, 'o', sizeof all);
    int fd = file("parts", "");
    CHECK(write(fd, all, sizeof all) == sizeof all);
    char *map = mmap(NULL, sizeof all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (int page = 0; page < PAGES; page++) map[page * PAGE] = 'a' + page;
    CHECK(munmap(map + PAGE, PAGE) == 0);
    CHECK(mmap(map + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == map + 2 * PAGE);
    map[2 * PAGE] = '!', map[2 * PAGE + 1] = '!';
    CHECK(mprotect(map + 3 * PAGE, PAGE, PROT_NONE) == 0);
    map[4 * PAGE + 1] = 'E';
    CHECK(msync(map + 4 * PAGE, PAGE, MS_SYNC) == 0);
    CHECK(mprotect(map + 3 * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0 && map[3 * PAGE] == 'd');
    map[3 * PAGE + 1] = 'D';
    CHECK(madvise(map + 3 * PAGE, PAGE, MADV_DONTNEED) == 0 && map[3 * PAGE + 1] == 'D');
    CHECK(munmap(map, sizeof all) == 0);
    for (int page = 0; page < PAGES; page++) CHECK(pread(fd, &byte, 1, page * PAGE) == 1 && byte == 'a' + page);
    CHECK(pread(fd, &byte, 1, 2 * PAGE + 1) == 1 && byte == 'o');
    CHECK(pread(fd, &byte, 1, 3 * PAGE + 1) == 1 && byte == 'D');
    CHECK(pread(fd, &byte, 1, 4 * PAGE + 1) == 1 && byte == 'E');
    char *only = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(only != MAP_FAILED && madvise(only, PAGE, MADV_DONTNEED) == 0 && only[0] == 'a' && munmap(only, PAGE) == 0);
    close(fd);
}

static void remapped(void) {
    enum { PAGE = 4096 };
    char byte, all[4 * PAGE];
    memset(all, 'o', sizeof all);
    int fd = file("remapped", "");
    CHECK(write(fd, all, sizeof all) == sizeof all);
    char *map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    map[0] = '1';
    map = mremap(map, PAGE, 3 * PAGE, MREMAP_MAYMOVE);
    CHECK(map != MAP_FAILED && map[0] == '1' && map[2 * PAGE] == 'o');
    map[2 * PAGE] = '2', map[1] = 'm';
    CHECK(mremap(map, 3 * PAGE, 2 * PAGE, 0) == map);
    CHECK(pread(fd, &byte, 1, 2 * PAGE) == 1 && byte == '2');
    char *place = mmap(NULL, 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    map[PAGE] = '3';
    CHECK(mremap(map, 2 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    CHECK(place[0] == '1' && place[PAGE] == '3' && place[3 * PAGE] == 'o');
    place[3 * PAGE] = '4';
    CHECK(munmap(place, 4 * PAGE) == 0);
    CHECK(pread(fd, &byte, 1, 1) == 1 && byte == 'm');
    CHECK(pread(fd, &byte, 1, PAGE) == 1 && byte == '3');
    CHECK(pread(fd, &byte, 1, 3 * PAGE) == 1 && byte == '4');
    /* What a copy cannot do is refused, and the mapping stays. */
    char *copy = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    char *grown = mremap(copy, PAGE, 2 * PAGE, MREMAP_MAYMOVE);
    CHECK(grown == MAP_FAILED ? copy[0] == '1' : grown[0] == '1' && grown[PAGE] == '3');
    map = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(remap_file_pages(map, PAGE, 0, 1, 0) == 0 ? map[0] == '3' : map[0] == '1');
    CHECK(munmap(map, 2 * PAGE) == 0);
    close(fd);
}

static void mapped_after_locks(void) {
    int fd = file("unlocked", "text");
    for (int round = 0; round < 2; round++) {
        CHECK(lseek(fd, 0, SEEK_SET) == 0 && (round == 0 || lockf(fd, F_LOCK, 0) == 0) && lockf(fd, F_ULOCK, 0) == 0);
        char *map = mmap(NULL, 4, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(map != MAP_FAILED && map[0] == 't' && munmap(map, 4) == 0);
    }
    close(fd);
}

static int is_mapped(int fd) {
    void *map = mmap(NULL, 4, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) CHECK(errno == ENODEV);
    return map != MAP_FAILED && munmap(map, 4) == 0;
}

static int locked_from(int fd, int command, short kind, off_t start, off_t bytes) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = start, .l_len = bytes};
    return fcntl(fd, command, &lock);
}

/* Unlocked range by range, by the close of another descriptor, and by being a child. */
static void mapped_after_ranges(void) {
    int commands[] = {F_SETLK, F_OFD_SETLK}, fd = file("ranges", "text"), status;
    for (int at = 0; at < 2; at++) {
        int command = commands[at];
        CHECK(is_mapped(fd) && locked_from(fd, command, F_WRLCK, 0, 100) == 0 && locked_from(fd, command, F_RDLCK, 200, 1) == 0);
        CHECK(!is_mapped(fd) && locked_from(fd, command, F_UNLCK, 0, 50) == 0);
        CHECK(!is_mapped(fd) && locked_from(fd, command, F_UNLCK, 50, 100) == 0);
        CHECK(!is_mapped(fd) && locked_from(fd, command, F_UNLCK, 200, 1) == 0);
        CHECK(is_mapped(fd));
        CHECK(locked_from(fd, command, F_WRLCK, 7, 1) == 0 && !is_mapped(fd));
        pid_t pid = fork();
        if (pid == 0) _exit(is_mapped(fd) != (command == F_SETLK));
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
        if (command == F_SETLK) CHECK(close(open("ranges", O_RDONLY)) == 0 && is_mapped(fd));
        CHECK(locked_from(fd, command, F_UNLCK, 7, 1) == 0 && is_mapped(fd));
    }
    close(fd);
}

static void locks(void) {
    int fd = file("locked", "x");
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    CHECK(fcntl(fd, F_SETLK, &lock) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct flock other = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 12, .l_len = 0};
        CHECK(fcntl(fd, F_SETLK, &other) == -1 && (errno == EAGAIN || errno == EACCES));
        CHECK(fcntl(fd, F_GETLK, &other) == 0 && other.l_type == F_WRLCK && other.l_start == 10 && other.l_len == 5 && other.l_pid == getppid());
        other = (struct flock){.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 15, .l_len = 0};
        CHECK(fcntl(fd, F_SETLK, &other) == 0);
        _exit(0);
    }
    wait_for(pid);
    int again = open("locked", O_RDWR), third = open("locked", O_RDWR);
    CHECK(flock(again, LOCK_EX | LOCK_NB) == 0);
    FAILS(flock(third, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    CHECK(flock(again, LOCK_UN) == 0 && flock(third, LOCK_SH | LOCK_NB) == 0);
    close(fd), close(again), close(third);
}

static int visited, after;

static int visit(const char *path, const struct stat *status, int kind, struct FTW *place) {
    CHECK(strcmp(path + place->base, strrchr(path, '/') ? strrchr(path, '/') + 1 : path) == 0);
    CHECK(kind == FTW_F ? S_ISREG(status->st_mode) : kind == FTW_DP ? S_ISDIR(status->st_mode) : kind == FTW_SL);
    visited += 1, after += kind == FTW_DP;
    return 0;
}

static void searching(void) {
    CHECK(mkdir("s", 0700) == 0 && mkdir("s/d", 0700) == 0 && symlink("f1", "s/link") == 0);
    close(file("s/f1", "1")), close(file("s/f2", "2")), close(file("s/d/f3", "3"));
    glob_t found;
    CHECK(glob("s/*/f?", 0, NULL, &found) == 0 && found.gl_pathc == 1 && strcmp(found.gl_pathv[0], "s/d/f3") == 0);
    globfree(&found);
    CHECK(glob("s/[fl]*", 0, NULL, &found) == 0 && found.gl_pathc == 3 && strcmp(found.gl_pathv[2], "s/link") == 0);
    globfree(&found);
    CHECK(glob("/etc/pass?d", 0, NULL, &found) == 0 && found.gl_pathc == 1);
    globfree(&found);
    CHECK(nftw("s", visit, 9, FTW_PHYS | FTW_DEPTH) == 0 && visited == 6 && after == 2);
    FAILS(nftw("missing", visit, 9, FTW_PHYS), ENOENT);
    char name[] = "s/XXXXXX";
    CHECK(mktemp(name) == name && strlen(name) == 8 && access(name, F_OK) == -1);
    CHECK(ftok("s/f1", 7) != -1 && ftok("s/f1", 7) != ftok("s/f2", 7));
    FAILS(inotify_add_watch(inotify_init1(IN_CLOEXEC), "s", IN_CREATE), EOPNOTSUPP);
    /* What is written somewhere by who appends goes to the end. */
    int fd = open("s/f1", O_RDWR | O_APPEND);
    CHECK(pwrite(fd, "23", 2, 0) == 2 && lseek(fd, 0, SEEK_CUR) == 0);
    char all[4] = "";
    CHECK(pread(fd, all, 4, 0) == 3 && memcmp(all, "123", 3) == 0);
    close(fd);
}

static void streams(void) {
    char line[32];
    FILE *stream = fopen("stream", "w+");
    CHECK(stream && fprintf(stream, "%d\n%s\n", 42, "text") > 0 && fseek(stream, 0, SEEK_SET) == 0);
    CHECK(fgets(line, 32, stream) && strcmp(line, "42\n") == 0 && fileno(stream) > 2);
    struct stat status;
    CHECK(fstat(fileno(stream), &status) == 0 && status.st_size == 8 && fclose(stream) == 0);
    stream = fdopen(open("stream", O_WRONLY | O_APPEND), "a");
    CHECK(stream && fputs("more\n", stream) >= 0 && fclose(stream) == 0);
    stream = fopen("stream", "r");
    CHECK(stream && fseek(stream, -5, SEEK_END) == 0 && fgets(line, 32, stream) && strcmp(line, "more\n") == 0 && fgetc(stream) == EOF && feof(stream));
    fclose(stream);
    fflush(stdout);
    int saved = dup(1), fd = open("out", O_CREAT | O_WRONLY, 0644);
    CHECK(dup2(fd, 1) == 1);
    printf("printed %d\n", 7);
    fflush(stdout);
    CHECK(dup2(saved, 1) == 1 && system("echo by a child >> out") == 0);
    stream = fopen("out", "r");
    CHECK(stream && fgets(line, 32, stream) && strcmp(line, "printed 7\n") == 0 && fgets(line, 32, stream) && strcmp(line, "by a child\n") == 0);
    fclose(stream), close(saved), close(fd);
    CHECK(fopen("none", "r") == NULL && errno == ENOENT);
    char name[] = "tmp.XXXXXX", dir[] = "tmpd.XXXXXX";
    fd = mkstemp(name);
    CHECK(fd >= 0 && access(name, R_OK) == 0 && close(fd) == 0 && remove(name) == 0 && mkdtemp(dir) == dir && remove(dir) == 0);
}

/* Files of Weft have no streams of wide characters: they fail there. They never crash, and bytes still pass. */
static void wide_streams(void) {
    wchar_t text[16];
    FILE *stream = fopen("wide", "w+");
    CHECK(stream && fputs("bytes\nmore\n", stream) >= 0 && fflush(stream) == 0 && fseek(stream, 0, SEEK_SET) == 0);
    CHECK(fwide(stream, 1) < 0); /* it is one of bytes by now, everywhere */
#define REFUSED(call, failed) do { errno = 0; CHECK((call) == (failed)); } while (0)
    if (getenv("WEFT_PREFIX")) {
        REFUSED(fgetwc(stream), WEOF);
        REFUSED(getwc(stream), WEOF);
        REFUSED(fgetwc_unlocked(stream), WEOF);
        REFUSED(getwc_unlocked(stream), WEOF);
        REFUSED(fgetws(text, 16, stream), NULL);
        REFUSED(fgetws_unlocked(text, 16, stream), NULL);
        REFUSED(ungetwc(L'x', stream), WEOF);
        REFUSED(fputwc(L'x', stream), WEOF);
        REFUSED(putwc(L'x', stream), WEOF);
        REFUSED(fputwc_unlocked(L'x', stream), WEOF);
        REFUSED(putwc_unlocked(L'x', stream), WEOF);
        REFUSED(fputws(L"x", stream), -1);
        REFUSED(fputws_unlocked(L"x", stream), -1);
        REFUSED(fwprintf(stream, L"%d", 1), -1);
        int number;
        REFUSED(fwscanf(stream, L"%d", &number), -1);
    }
    char line[16];
    CHECK(fgets(line, 16, stream) && strcmp(line, "bytes\n") == 0 && fclose(stream) == 0);
}

static volatile int alarms, handled;
static int in_handler;

static void on_alarm(int number) {
    char byte = 's';
    (void)number;
    alarms++;
    handled += pwrite(in_handler, &byte, 1, alarms % 100) == 1 && access("signals", F_OK) == 0;
}

static void *work(void *argument) {
    char name[16], data[5000], back[5000];
    int number = (int)(long)argument;
    snprintf(name, sizeof name, "thread%d", number);
    memset(data, 'a' + number, sizeof data);
    for (int round = 0; round < 40; round++) {
        int fd = open(name, O_RDWR | O_CREAT, 0644);
        CHECK(fd >= 0 && pwrite(fd, data, sizeof data, round * 1000) == sizeof data);
        CHECK(pread(fd, back, sizeof back, round * 1000) == sizeof back && memcmp(data, back, sizeof back) == 0);
        CHECK(close(fd) == 0);
    }
    return NULL;
}

static void threads_and_signals(void) {
    pthread_t threads[4];
    in_handler = file("signals", "");
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval timer = {{0, 2000}, {0, 2000}}, off = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    for (long at = 0; at < 4; at++) CHECK(pthread_create(&threads[at], NULL, work, (void *)at) == 0);
    for (int at = 0; at < 10; at++) { /* forks in the midst of it */
        pid_t pid;
        while ((pid = fork()) < 0) CHECK(errno == EINTR || errno == EAGAIN);
        if (pid == 0) {
            int fd = open("signals", O_RDONLY);
            char byte;
            _exit(fd < 0 || pread(fd, &byte, 1, 0) < 0);
        }
        int status;
        while (waitpid(pid, &status, 0) < 0) CHECK(errno == EINTR);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    for (int at = 0; at < 4; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    while (alarms == 0) pause();
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    CHECK(handled == alarms);
    /* One description, many writers: every record has its own place. */
    int fd = file("records", "");
    for (int at = 0; at < 4; at++) {
        if (fork() == 0) {
            for (int round = 0; round < 25; round++) if (write(fd, "12345678\n", 9) != 9) _exit(1);
            _exit(0);
        }
    }
    for (int at = 0; at < 4; at++) {
        int status;
        CHECK(wait(&status) > 0 && status == 0);
    }
    CHECK(lseek(fd, 0, SEEK_CUR) == 900 && lseek(fd, 0, SEEK_END) == 900);
    close(fd), close(in_handler);
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "after-exec") == 0) return after_exec(atoi(arguments[2]));
    CHECK(count == 2);
    self = realpath(arguments[0], NULL);
    CHECK(self && chdir(arguments[1]) == 0);
    shared_offsets();
    sent();
    appends_and_vectors();
    relative_to_directories();
    waiting();
    copies();
    memory();
    parts_of_mappings();
    remapped();
    mapped_after_locks();
    mapped_after_ranges();
    locks();
    searching();
    streams();
    wide_streams();
    threads_and_signals();
    puts("all of it holds");
    return 0;
}
