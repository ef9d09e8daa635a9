/*
 * A faulty disk for one process. When preloaded, it intercepts the calls that write files, and makes
 * those below one directory fail, wait or hang.
 *
 * At every call it reads the mode from a small file shared with the test (disk.py has the same
 * layout), so that the test can change it while the process runs. Reads and pages written through
 * mmap are not affected.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum mode { NORMAL = 0, FULL = 1, SLOW = 2, ERROR = 3, HANG = 4 };

/* Whether a call needs space: a full disk fails only those; the other modes affect every call. */
enum need { ROOM, NO_ROOM };

struct control {
    uint32_t mode;
    uint32_t delay_ms;
    uint64_t hits; /* affected calls, for a test to wait for */
};

static struct control *control;
static char directory[PATH_MAX];
static size_t directory_length;

__attribute__((noreturn)) static void give_up(const char *what) {
    /* Without its faults the test would prove nothing, so the process must not start. */
    dprintf(STDERR_FILENO, "disk faults: %s: %s\n", what, strerror(errno));
    _exit(97);
}

__attribute__((constructor)) static void set_up(void) {
    const char *root = getenv("FAULTY_DISK_DIRECTORY"), *path = getenv("FAULTY_DISK_CONTROL");
    errno = EINVAL;
    if (!root || !path || strlen(root) >= sizeof directory)
        give_up("FAULTY_DISK_DIRECTORY and FAULTY_DISK_CONTROL must be set");
    strcpy(directory, root);
    directory_length = strlen(directory);
    int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int fd = real_open ? real_open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        give_up(path);
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        give_up(path);
    close(fd);
    control = mapped;
}

static uint32_t mode_now(void) {
    return control ? __atomic_load_n(&control->mode, __ATOMIC_ACQUIRE) : NORMAL;
}

static int below_directory(const char *path) {
    return strncmp(path, directory, directory_length) == 0 &&
           (path[directory_length] == '/' || path[directory_length] == '\0');
}

static int concerns_file(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = '\0';
    return below_directory(path);
}

static int concerns_path(int folder, const char *path) {
    char whole[PATH_MAX], link[64];
    if (path[0] == '/')
        return below_directory(path);
    ssize_t length;
    if (folder == AT_FDCWD) {
        if (!getcwd(whole, sizeof whole))
            return 0;
        length = (ssize_t)strlen(whole);
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        length = readlink(link, whole, sizeof whole - 1);
        if (length < 0)
            return 0;
    }
    if ((size_t)length + strlen(path) + 2 > sizeof whole)
        return 0;
    whole[length] = '/';
    strcpy(whole + length + 1, path);
    return below_directory(whole);
}

static void wait_ms(uint32_t ms) {
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000L};
    while (nanosleep(&left, &left) == -1 && errno == EINTR)
        ;
}

/* Wait or fail according to the mode. Returns 0 to make the real call, else the errno. */
static int misbehave(enum need need) {
    uint32_t mode = mode_now();
    if (mode == NORMAL || (mode == FULL && need == NO_ROOM))
        return 0;
    __atomic_fetch_add(&control->hits, 1, __ATOMIC_RELAXED);
    while ((mode = mode_now()) == HANG)
        wait_ms(5);
    if (mode == SLOW)
        wait_ms(control->delay_ms);
    if (mode == FULL && need == ROOM)
        return ENOSPC;
    return mode == ERROR ? EIO : 0;
}

static int trouble_with_file(int fd, enum need need) {
    int before = errno;
    int trouble = mode_now() != NORMAL && concerns_file(fd) ? misbehave(need) : 0;
    errno = trouble ? trouble : before;
    return trouble;
}

static int trouble_with_new_file(int folder, const char *path, int flags) {
    int before = errno;
    int trouble = 0;
    struct stat there;
    if (mode_now() != NORMAL && (flags & O_CREAT) && concerns_path(folder, path) &&
        fstatat(folder, path, &there, AT_SYMLINK_NOFOLLOW) != 0)
        trouble = misbehave(ROOM);
    errno = trouble ? trouble : before;
    return trouble;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real && !(real = (__typeof__(&name))dlsym(RTLD_NEXT, #name))) give_up(#name)

#define ON_FILE(result, name, need, parameters, arguments) \
    result name parameters { \
        REAL(name); \
        return trouble_with_file(fd, need) ? -1 : real arguments; \
    }

ON_FILE(ssize_t, write, ROOM, (int fd, const void *data, size_t size), (fd, data, size))
ON_FILE(ssize_t, writev, ROOM, (int fd, const struct iovec *parts, int count), (fd, parts, count))
ON_FILE(ssize_t, pwrite, ROOM, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
ON_FILE(ssize_t, pwritev, ROOM, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
ON_FILE(int, fsync, NO_ROOM, (int fd), (fd))
ON_FILE(int, fdatasync, NO_ROOM, (int fd), (fd))
ON_FILE(int, ftruncate, NO_ROOM, (int fd, off_t size), (fd, size))
ON_FILE(int, fallocate, ROOM, (int fd, int how, off_t at, off_t size), (fd, how, at, size))
#ifdef __GLIBC__
ON_FILE(ssize_t, pwrite64, ROOM, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
ON_FILE(ssize_t, pwritev64, ROOM, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
ON_FILE(ssize_t, pwritev2, ROOM, (int fd, const struct iovec *parts, int count, off_t at, int how),
        (fd, parts, count, at, how))
ON_FILE(ssize_t, pwritev64v2, ROOM, (int fd, const struct iovec *parts, int count, off64_t at, int how),
        (fd, parts, count, at, how))
ON_FILE(int, ftruncate64, NO_ROOM, (int fd, off64_t size), (fd, size))
ON_FILE(int, fallocate64, ROOM, (int fd, int how, off64_t at, off64_t size), (fd, how, at, size))
#endif

/* These two return the error instead of setting errno. */
int posix_fallocate(int fd, off_t at, off_t size) {
    REAL(posix_fallocate);
    int trouble = trouble_with_file(fd, ROOM);
    return trouble ? trouble : real(fd, at, size);
}

#ifdef __GLIBC__
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    REAL(posix_fallocate64);
    int trouble = trouble_with_file(fd, ROOM);
    return trouble ? trouble : real(fd, at, size);
}
#endif

#define RIGHTS(flags) \
    mode_t rights = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        rights = (mode_t)va_arg(rest, int); \
        va_end(rest); \
    }

#define OPENING(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        RIGHTS(flags) \
        return trouble_with_new_file(AT_FDCWD, path, flags) ? -1 : real(path, flags, rights); \
    }

#define OPENING_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(name); \
        RIGHTS(flags) \
        return trouble_with_new_file(folder, path, flags) ? -1 : real(folder, path, flags, rights); \
    }

OPENING(open)
OPENING_AT(openat)
#ifdef __GLIBC__
OPENING(open64)
OPENING_AT(openat64)
#endif
