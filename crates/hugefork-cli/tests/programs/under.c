/* Runs a program under a system-call filter. The filter kills the process for calls that the
 * library might make but that systemd's `SystemCallFilter=@system-service` lacks, or that
 * Debian's Redis unit removes from it (`@privileged`, `@resources`). */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KILL(name) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

int main(int argc, char **argv) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILL(seccomp), KILL(mincore), KILL(unshare), KILL(setns), KILL(mount), KILL(chroot), KILL(ptrace), KILL(bpf),
        KILL(perf_event_open), KILL(pkey_mprotect), KILL(swapon), KILL(reboot), KILL(quotactl), KILL(acct),
        KILL(capset), KILL(chown), KILL(setuid), KILL(setgroups), KILL(move_pages), KILL(mbind), KILL(sched_setaffinity),
        KILL(sched_setscheduler), KILL(setpriority), KILL(setrlimit), KILL(set_mempolicy), KILL(ioprio_set),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return 1;
    execvp(argv[1], argv + 1);
    return 2;
}
