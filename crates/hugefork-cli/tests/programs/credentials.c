/* A program that begins as root and gives its rights up, by libc's functions, while a child lives that shares its
   memory. No thread of the process may have more rights afterwards than the program has, nor have had any to use
   before. With `thread`, another thread than the first forks; with `child`, a child that writes densely gives its
   rights up, too. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEN (64ul << 20)

static char *memory;
static int wakes[2], bad;
static pid_t child;

/* What a thread's status says after `name`. */
static void field(const char *status, const char *name, char *text) {
    const char *at = strstr(status, name);
    sscanf(at ? at + strlen(name) : "", " %[^\n]", text);
}

static void check(const char *when, const char *thread, const char *name, const char *is, const char *wanted) {
    if (strcmp(is, wanted)) {
        printf("%s: thread %s has %s %s instead of %s\n", when, thread, name, is, wanted);
        bad++;
    }
}

/* Looks at all threads of the process, and says how many are not the program's. */
static int look(const char *when) {
    char path[300], status[8192], own[8192], name[100], is[200], wanted[200];
    FILE *file = fopen("/proc/thread-self/status", "r");
    own[fread(own, 1, sizeof own - 1, file)] = 0;
    fclose(file);
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        if (!isdigit(task->d_name[0]) || !(file = fopen(path, "r"))) continue;
        status[fread(status, 1, sizeof status - 1, file)] = 0;
        fclose(file);
        field(status, "Name:", name);
        /* A thread that is leaving or beginning does nothing for anybody; it is looked at when it is there. */
        if (strncmp(name, "hugefork-", 9)) continue;
        count++;
        for (const char **each = (const char *[]){"Uid:", "Gid:", "Groups:", NULL}; *each; each++) {
            field(status, *each, is), field(own, *each, wanted);
            check(when, name, *each, is, wanted);
        }
        for (const char **each = (const char *[]){"CapInh:", "CapEff:", "CapAmb:", "CapBnd:", NULL}; *each; each++) {
            field(status, *each, is), field(own, "CapEff:", wanted);
            /* To give that up is a right, too. It counts where other programs are started, which this thread cannot do. */
            if (!strcmp(*each, "CapBnd:") && !strcmp(wanted, "0000000000000000")) continue;
            check(when, name, *each, is, "0000000000000000");
        }
        /* Others of the same user who have less may not trace it: so these stay, and can be of no use. */
        field(status, "CapPrm:", is), field(own, "CapPrm:", wanted);
        check(when, name, "CapPrm:", is, wanted);
        field(status, "NoNewPrivs:", is);
        check(when, name, "NoNewPrivs:", is, "1");
        field(status, "Seccomp:", is);
        check(when, name, "Seccomp:", is, "2");
    }
    closedir(tasks);
    return count;
}

static void give_up(void) {
    gid_t group = 65534;
    if (setgroups(1, &group) || setgid(65534) || setuid(65534)) bad++;
}

/* Waits for a thread of the library's, where there is to be one, and looks at it. */
static void wait_and_look(const char *when, int is_wanted) {
    while (!look(when) && is_wanted) usleep(1000);
}

static void *forks(void *is_in_child) {
    child = fork();
    if (child) return NULL;
    close(wakes[1]);
    int is_wanted = is_in_child != NULL;
    for (int page = 0; page < 100; page++) memory[LEN / 2 + page * 4096ul] = 2;
    wait_and_look("a child before", is_wanted);
    if (is_wanted) {
        give_up();
        look("a child after");
        memset(memory, 3, LEN);
        look("a child later");
    }
    fflush(stdout);
    char byte;
    read(wakes[0], &byte, 1);
    _exit(bad != 0);
}

int main(int argc, char **argv) {
    int has_library = argc > 1 && atoi(argv[1]), in_thread = argc > 2 && !strcmp(argv[2], "thread"),
        in_child = argc > 2 && !strcmp(argv[2], "child");
    memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, LEN);
    pipe(wakes);
    void *argument = in_child ? memory : NULL;
    pthread_t thread;
    if (in_thread) {
        pthread_create(&thread, NULL, forks, argument);
        pthread_join(thread, NULL);
    } else {
        forks(argument);
    }
    close(wakes[0]);
    wait_and_look("before", has_library);
    int dumpable = prctl(PR_GET_DUMPABLE);
    if (dumpable != 1) printf("it is not dumpable any more: %d\n", dumpable), bad++;
    give_up();
    wait_and_look("after", has_library);
    if (getuid() != 65534 || getgid() != 65534) bad++;
    close(wakes[1]);
    int status;
    bad += waitpid(child, &status, 0) != child || status;
    for (size_t at = 0; at < LEN; at += 4096) bad += memory[at] != 1;
    printf("%d bad\n", bad);
    return bad != 0;
}
