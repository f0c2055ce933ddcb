/* Counts the system calls of this process that touch files under a folder; at the n-th, kills the process or lets the call
   fail. Loaded with LD_PRELOAD, so that SQLite's own calls are seen, too. A write that kills writes half of its bytes first.
   Locks don't fail: SQLite could not give back what it holds. */
#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[PATH_MAX];
static atomic_long seen;
static long chosen;
static int failure; /* an errno, or 0 for SIGKILL */

/* From now on, count. `number` 0: only count. */
void calls_arm(const char *path, long number, int error) {
    chosen = number;
    failure = error;
    seen = 0;
    snprintf(folder, sizeof folder, "%s/", path);
}

long calls_seen(void) { return seen; }

static int is_chosen(const char *path) {
    return folder[0] && path && strncmp(path, folder, strlen(folder)) == 0 && ++seen == chosen;
}

static int is_chosen_file(int fd) {
    char link[64], path[PATH_MAX];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return is_chosen(path);
}

static int fault(void) {
    if (!failure) kill(getpid(), SIGKILL);
    errno = failure;
    return -1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define ON_FILE(type, name, parameters, arguments) \
    type name parameters { return is_chosen_file(fd) ? fault() : NEXT(name) arguments; }
#define ON_PATH(type, name, parameters, arguments) \
    type name parameters { return is_chosen(path) ? fault() : NEXT(name) arguments; }
#define WRITING(name, parameters, half, arguments) \
    ssize_t name parameters { \
        if (!is_chosen_file(fd)) return NEXT(name) arguments; \
        if (!failure && NEXT(name) half < 0) return -1; \
        return fault(); \
    }
#define OPENING(name, parameters, ...) \
    int name parameters { \
        va_list list; \
        va_start(list, flags); \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, int) : 0; \
        va_end(list); \
        return is_chosen(path) ? fault() : NEXT(name)(__VA_ARGS__, flags, mode); \
    }
#define CONTROL(name) \
    int name(int fd, int command, ...) { \
        va_list list; \
        va_start(list, command); \
        void *argument = va_arg(list, void *); \
        va_end(list); \
        int locks = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW; \
        return locks && !failure && is_chosen_file(fd) ? fault() : NEXT(name)(fd, command, argument); \
    }

WRITING(write, (int fd, const void *data, size_t size), (fd, data, size / 2), (fd, data, size))
WRITING(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size / 2, at), (fd, data, size, at))
WRITING(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size / 2, at), (fd, data, size, at))
ON_FILE(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))
ON_FILE(ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
ON_FILE(ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
ON_FILE(int, fsync, (int fd), (fd))
ON_FILE(int, fdatasync, (int fd), (fd))
ON_FILE(int, ftruncate, (int fd, off_t size), (fd, size))
ON_FILE(int, ftruncate64, (int fd, off64_t size), (fd, size))
ON_PATH(int, rename, (const char *path, const char *to), (path, to))
ON_PATH(int, link, (const char *path, const char *to), (path, to))
ON_PATH(int, unlink, (const char *path), (path))
ON_PATH(int, mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(int, rmdir, (const char *path), (path))
OPENING(open, (const char *path, int flags, ...), path)
OPENING(open64, (const char *path, int flags, ...), path)
OPENING(openat, (int at, const char *path, int flags, ...), at, path)
OPENING(openat64, (int at, const char *path, int flags, ...), at, path)
CONTROL(fcntl)
CONTROL(fcntl64)
