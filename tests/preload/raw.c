// System calls about files and paths by `syscall`, and what each returns: raw DIRECTORY.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

#define CALL(name, ...)                                                                                   \
    ({                                                                                                    \
        errno = 0;                                                                                        \
        long result = syscall(SYS_##name, __VA_ARGS__);                                                   \
        printf("%s: %ld %s\n", #name, is_fd(SYS_##name) && result > 0 ? 1 : result, result < 0 ? strerror(errno) : ""); \
        result;                                                                                           \
    })

static int is_fd(long number) {
    return number == SYS_openat || number == SYS_dup
#ifdef SYS_open
        || number == SYS_open || number == SYS_creat
#endif
        ;
}

static void show(const char *what, const struct stat *stat) {
    printf("%s: mode %o, %ld bytes, %ld links, modified %ld\n", what, stat->st_mode, (long)stat->st_size, (long)stat->st_nlink,
        stat->st_mtime < 1000 ? (long)stat->st_mtime : -1);
}

int main(int count, char **arguments) {
    if (count < 2 || CALL(chdir, arguments[1])) return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct stat stat;
    struct statfs statfs;
    char buffer[256] = "";
    struct iovec parts[2] = {{"one ", 4}, {"two", 3}}, places[2] = {{buffer, 3}, {buffer + 100, 50}};
    int here = CALL(openat, AT_FDCWD, ".", O_RDONLY | O_DIRECTORY, 0);
    int fd = CALL(openat, here, "file", O_RDWR | O_CREAT | O_EXCL, 0640);
    CALL(writev, fd, parts, 2);
    CALL(pwritev, fd, parts, 2, 7L, 0L);
    CALL(pwritev2, fd, parts, 2, 14L, 0L, 0);
    CALL(lseek, fd, 0L, SEEK_SET);
    CALL(readv, fd, places, 2);
    printf("%.3s %.30s\n", buffer, buffer + 100);
    CALL(preadv, fd, places, 2, 2L, 0L);
    CALL(preadv2, fd, places, 2, 4L, 0L, 0);
    printf("%.3s %.30s\n", buffer, buffer + 100);
    CALL(ftruncate, fd, 5L);
    CALL(fallocate, fd, 0, 0L, 10L);
    CALL(fsync, fd);
    CALL(fdatasync, fd);
    CALL(syncfs, fd);
    CALL(sync_file_range, fd, 0L, 5L, 0);
    CALL(readahead, fd, 0L, 10L);
    CALL(flock, fd, 2);
    int again = CALL(dup, fd);
    CALL(fstat, again, &stat);
    show("fstat", &stat);
    CALL(close, again);
    CALL(fstatfs, fd, &statfs);
    CALL(statfs, "file", &statfs);
    CALL(statfs, "none", &statfs);
    CALL(fchmod, fd, 0600);
    CALL(fchown, fd, getuid(), getgid());
    CALL(fchmodat, here, "file", 0604);
    CALL(fchownat, here, "file", -1, -1, 0);
    CALL(faccessat, here, "file", R_OK);
    CALL(faccessat, here, "none", R_OK);
    CALL(fsetxattr, fd, "user.a", "1", 1L, 0);
    CALL(setxattr, "file", "user.b", "22", 2L, 0);
    CALL(lsetxattr, "file", "user.a", "1", 1L, XATTR_CREATE);
    CALL(getxattr, "file", "user.b", buffer, sizeof buffer);
    CALL(lgetxattr, "file", "user.a", buffer, sizeof buffer);
    CALL(fgetxattr, fd, "user.c", buffer, sizeof buffer);
    CALL(listxattr, "file", buffer, sizeof buffer);
    CALL(llistxattr, "none", buffer, sizeof buffer);
    CALL(flistxattr, fd, buffer, 0L);
    CALL(removexattr, "file", "user.a");
    CALL(lremovexattr, "file", "user.b");
    CALL(fremovexattr, fd, "user.b");
    CALL(truncate, "file", 3L);
    CALL(mknodat, here, "fifo", S_IFIFO | 0600, 0);
    CALL(symlinkat, "file", here, "link");
    CALL(linkat, here, "file", here, "other", 0);
    CALL(linkat, here, "file", here, "other", 0);
    CALL(mkdirat, here, "dir", 0755);
    CALL(chdir, "dir");
    CALL(readlinkat, here, "../link", buffer, sizeof buffer);
    CALL(readlinkat, AT_FDCWD, "../link", buffer, 2L);
    CALL(fchdir, here);
    CALL(close, fd);
#ifdef SYS_open
    fd = CALL(open, "file", O_RDONLY);
    CALL(dup2, fd, 200);
    CALL(close, 200);
    CALL(close, fd);
    CALL(open, "none", O_RDONLY);
    fd = CALL(creat, "new", 0644);
    CALL(close, fd);
    CALL(stat, "link", &stat);
    show("stat", &stat);
    CALL(lstat, "link", &stat);
    CALL(lstat, "none", &stat);
    CALL(access, "new", W_OK);
    CALL(chmod, "new", 0711);
    CALL(chown, "link", -1, -1);
    CALL(lchown, "link", -1, -1);
    CALL(utime, "new", &(struct utimbuf){7, 8});
    CALL(utimes, "new", ((struct timeval[2]){{9, 0}, {10, 0}}));
    CALL(futimesat, here, "new", ((struct timeval[2]){{9, 0}, {11, 0}}));
    CALL(stat, "new", &stat);
    show("stat", &stat);
    CALL(mkdir, "made", 0700);
    CALL(mknod, "made/fifo", S_IFIFO | 0600, 0);
    CALL(symlink, "nowhere", "made/link");
    CALL(readlink, "made/link", buffer, sizeof buffer);
    CALL(readlink, "made", buffer, sizeof buffer);
    CALL(link, "made/link", "made/same");
    CALL(rename, "made/same", "made/moved");
    CALL(renameat, here, "made/moved", here, "moved");
    CALL(rmdir, "made");
    CALL(unlink, "made/link");
    CALL(unlink, "made/fifo");
    CALL(unlink, "moved");
    CALL(rmdir, "made");
#endif
    CALL(chdir, "none");
    // Without what they need.
    CALL(chdir, NULL);
    CALL(openat, here, NULL, O_RDONLY);
    CALL(linkat, here, "file", here, NULL, 0);
    CALL(renameat2, here, NULL, here, "file", 0);
    CALL(symlinkat, NULL, here, "no link");
    CALL(getxattr, "file", NULL, buffer, sizeof buffer);
    CALL(setxattr, NULL, "user.a", "1", 1L, 0);
    CALL(fremovexattr, here, NULL);
    CALL(readv, -1, places, 2);
    CALL(dup, -1);
    return 0;
}
