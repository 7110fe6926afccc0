# Has gdb let the page faults pass that hugefork resolves, and stop at all others:
#
#     gdb -x hugefork.gdb --args PROGRAM …        or, at its prompt: source hugefork.gdb
#
# Where it stops, `bt` shows the handler's frames first, and what went wrong below `<signal handler called>`.
handle SIGSEGV nostop noprint pass
set breakpoint pending on
break hugefork_foreign_fault
set breakpoint pending auto
