/* Executes a program by every function there is, with an empty environment. `empty_environment NAME FILE` has the program of this
 * path print the file; each line says which function it was. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static char *path, *file, *name, *list[3], *none[] = {NULL};
static char command[1000];

/* `clearenv`, and the variable that says where programs are. */
static void only_path(void) {
    char *copy = strdup(path);
    clearenv();
    setenv("PATH", dirname(copy), 1);
}

static void by_execve(void) { execve(path, list, none); }
static void by_execve_null(void) { execve(path, list, NULL); }
static void by_execv(void) { clearenv(), execv(path, list); }
static void by_execvp(void) { only_path(), execvp(name, list); }
static void by_execvpe(void) { only_path(), execvpe(name, list, none); }
static void by_execl(void) { clearenv(), execl(path, path, file, NULL); }
static void by_execlp(void) { only_path(), execlp(name, path, file, NULL); }
static void by_execle(void) { execle(path, path, file, NULL, none); }
static void by_execveat(void) { execveat(AT_FDCWD, path, list, none, 0); }
static void by_execveat_directory(void) {
    char *copy = strdup(path);
    execveat(open(dirname(copy), O_PATH | O_DIRECTORY), name, list, none, 0);
}
static void by_execveat_descriptor(void) { execveat(open(path, O_RDONLY), "", list, none, AT_EMPTY_PATH); }
static void by_fexecve(void) { fexecve(open(path, O_RDONLY), list, none); }
static void by_number(void) { syscall(SYS_execve, path, list, none); }
static void ends(int failed, pid_t child) {
    int status;
    _exit(failed || waitpid(child, &status, 0) != child || status != 0);
}
static void by_posix_spawn(void) {
    pid_t child = 0;
    int failed = posix_spawn(&child, path, NULL, NULL, list, none);
    ends(failed, child);
}
static void by_posix_spawnp(void) {
    pid_t child = 0;
    only_path();
    int failed = posix_spawnp(&child, name, NULL, NULL, list, none);
    ends(failed, child);
}
static void by_system(void) { clearenv(), _exit(system(command) != 0); }
static void by_popen(void) {
    char said[100] = "";
    clearenv();
    FILE *from = popen(command, "r");
    while (from != NULL && fgets(said, sizeof said, from) != NULL) fputs(said, stdout);
    fflush(stdout);
    _exit(from == NULL || pclose(from) != 0);
}

#define WAY(function) {#function, function}
static const struct { const char *name; void (*execute)(void); } WAYS[] = {
    WAY(by_execve), WAY(by_execve_null), WAY(by_execv), WAY(by_execvp), WAY(by_execvpe), WAY(by_execl), WAY(by_execlp),
    WAY(by_execle), WAY(by_execveat), WAY(by_execveat_directory), WAY(by_execveat_descriptor), WAY(by_fexecve), WAY(by_number),
    WAY(by_posix_spawn), WAY(by_posix_spawnp), WAY(by_system), WAY(by_popen),
};

int main(int count, char **arguments) {
    if (count != 3) return 2;
    path = arguments[1], file = arguments[2];
    name = strrchr(path, '/') + 1;
    list[0] = path, list[1] = file;
    snprintf(command, sizeof command, "%s %s", path, file);
    for (size_t way = 0; way < sizeof WAYS / sizeof *WAYS; way++) {
        printf("%s: ", WAYS[way].name), fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            WAYS[way].execute();
            printf("not executed: %m\n"), fflush(stdout);
            _exit(1);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0) printf("ended with %d\n", status);
    }
}
