/* System calls write into memory while the program forks and a thread writes to the same pages.
 * No call may fail, and no data may be lost. The argument is the number of forks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define LEN (64ul << 20)

static char *memory;
static atomic_int is_over;
static int file, ends[2], sockets[2], epoll;
static const char text[] = "what is read";
#define SIZE sizeof text

static int is_text(const char *at) { return memcmp(at, text, SIZE) == 0; }
static int fill(int to) { return write(to, text, SIZE) == SIZE; }

static int by_read(char *at) { return fill(ends[1]) && read(ends[0], at, SIZE) == SIZE && is_text(at); }
static int by_pread(char *at) { return pread(file, at, SIZE, 0) == SIZE && is_text(at); }
static int by_readv(char *at) {
    struct iovec pieces[2] = {{at, 5}, {at + 5, SIZE - 5}};
    return fill(ends[1]) && readv(ends[0], pieces, 2) == SIZE && is_text(at);
}
static int by_preadv(char *at) {
    struct iovec pieces[2] = {{at, 5}, {at + 5, SIZE - 5}};
    return preadv(file, pieces, 2, 0) == SIZE && is_text(at);
}
static int by_recv(char *at) { return fill(sockets[1]) && recv(sockets[0], at, SIZE, 0) == SIZE && is_text(at); }
static int by_recvfrom(char *at) {
    socklen_t *len = (socklen_t *)(at + 512);
    *len = 64;
    return fill(sockets[1]) && recvfrom(sockets[0], at, SIZE, 0, (void *)(at + 256), len) == SIZE && is_text(at);
}
static int by_recvmsg(char *at) {
    struct msghdr *head = (struct msghdr *)(at + 512);
    struct iovec *piece = (struct iovec *)(at + 768);
    *piece = (struct iovec){at, SIZE};
    *head = (struct msghdr){.msg_iov = piece, .msg_iovlen = 1};
    return fill(sockets[1]) && recvmsg(sockets[0], head, 0) == SIZE && is_text(at);
}
static int by_epoll_wait(char *at) {
    return epoll_wait(epoll, (struct epoll_event *)at, 4, 0) == 1 && ((struct epoll_event *)at)->data.u64 == 7;
}
static int by_poll(char *at) {
    struct pollfd *one = (struct pollfd *)at;
    *one = (struct pollfd){ends[1], POLLOUT, 0};
    return poll(one, 1, 0) == 1 && one->revents == POLLOUT;
}
static int by_select(char *at) {
    fd_set *set = (fd_set *)at;
    FD_ZERO(set);
    FD_SET(ends[1], set);
    return select(ends[1] + 1, NULL, set, NULL, &(struct timeval){0, 0}) == 1 && FD_ISSET(ends[1], set);
}
static int by_getrandom(char *at) { return getrandom(at, 64, 0) == 64; }
static int by_stat(char *at) { return stat("/", (struct stat *)at) == 0 && S_ISDIR(((struct stat *)at)->st_mode); }
static int by_fstat(char *at) { return fstat(file, (struct stat *)at) == 0 && ((struct stat *)at)->st_size == SIZE; }
static int by_uname(char *at) { return uname((struct utsname *)at) == 0 && strcmp(at, "Linux") == 0; }
static int by_sysinfo(char *at) { return sysinfo((struct sysinfo *)at) == 0 && ((struct sysinfo *)at)->mem_unit; }
static int by_getrusage(char *at) { return getrusage(RUSAGE_SELF, (struct rusage *)at) == 0; }
static int by_getcwd(char *at) { return getcwd(at, 1024) == at && at[0] == '/'; }
static int by_readlink(char *at) { return readlink("/proc/self/exe", at, 1024) > 1 && at[0] == '/'; }
static int by_getsockname(char *at) {
    socklen_t *len = (socklen_t *)(at + 512);
    *len = 64;
    return getsockname(sockets[0], (struct sockaddr *)at, len) == 0 && *len >= 2;
}
static int by_getsockopt(char *at) {
    socklen_t *len = (socklen_t *)(at + 512);
    *len = 4;
    return getsockopt(sockets[0], SOL_SOCKET, SO_TYPE, at, len) == 0 && *(int *)at == SOCK_STREAM;
}
static int by_ioctl(char *at) { return ioctl(ends[0], FIONREAD, (int *)at) == 0 && *(int *)at == 0; }
static int by_pipe(char *at) {
    int *two = (int *)at;
    return pipe(two) == 0 && close(two[0]) == 0 && close(two[1]) == 0;
}
static int by_clock(char *at) { return clock_getres(CLOCK_PROCESS_CPUTIME_ID, (struct timespec *)at) == 0; }
static int by_process_vm_readv(char *at) {
    struct iovec to = {at, SIZE}, from = {(void *)text, SIZE};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == SIZE && is_text(at);
}

static const struct { const char *name; int (*holds)(char *); } calls[] = {
#define CALL(name) {#name, by_##name}
    CALL(read), CALL(pread), CALL(readv), CALL(preadv), CALL(recv), CALL(recvfrom), CALL(recvmsg), CALL(epoll_wait),
    CALL(poll), CALL(select), CALL(getrandom), CALL(stat), CALL(fstat), CALL(uname), CALL(sysinfo), CALL(getrusage),
    CALL(getcwd), CALL(readlink), CALL(getsockname), CALL(getsockopt), CALL(ioctl), CALL(pipe), CALL(clock),
    CALL(process_vm_readv),
};
#define CALLS (sizeof calls / sizeof *calls)

/* Makes the pages private, so that they are promoted and written back: this thread writes to
 * their second halves. */
static void *write_beside(void *none) {
    for (size_t at = 0; !is_over; at = (at + PAGE) % LEN) {
        memory[at + PAGE / 2]++;
        if (at == 0) usleep(1000);
    }
    return none;
}

int main(int count, char **words) {
    if (count < 2) return 64;
    memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    file = memfd_create("text", 0);
    epoll = epoll_create1(0);
    struct epoll_event event = {EPOLLOUT, {.u64 = 7}};
    if (memory == MAP_FAILED || file < 0 || !fill(file) || pipe(ends) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], &event))
        return 65;
    memset(memory, 1, LEN);
    pthread_t thread;
    pthread_create(&thread, NULL, write_beside, NULL);
    int bad = 0, status;
    size_t at = 0;
    for (int forks = atoi(words[1]); forks > 0; forks--) {
        pid_t child = fork();
        if (child == 0) {
            usleep(20000);
            _exit(0);
        }
        for (int round = 0; waitpid(child, &status, WNOHANG) == 0 || round < 20; round++)
            for (size_t nth = 0; nth < CALLS; nth++, at = (at + 37 * PAGE) % LEN) {
                errno = 0;
                if (!calls[nth].holds(memory + at) && bad++ < 10)
                    printf("%s at %zu: %s\n", calls[nth].name, at, strerror(errno));
            }
    }
    is_over = 1;
    pthread_join(thread, NULL);
    printf("%zu calls, %d bad\n", CALLS, bad);
    return bad != 0;
}
