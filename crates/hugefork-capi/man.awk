# Writes the man page hugefork(3) from the header: its comments as text, its declarations as they stand.
#
#     awk -f man.awk -v version=0.1.0 include/hugefork.h >hugefork.3

# A line for roff, which has its own meaning for backslashes, hyphens, and dots at the beginning.
function escaped(line) {
    gsub(/\\/, "\\e", line)
    gsub(/-/, "\\-", line)
    return (line ~ /^['.]/ ? "\\&" : "") line
}

# Prints the text of the last comment. Lines that are indented by four spaces are code.
function print_comment(    i, is_code) {
    for (i = 1; i <= lines; i++) {
        if ((comment[i] ~ /^    /) != is_code) {
            print is_code ? ".fi" : ".nf"
            is_code = !is_code
        }
        if (comment[i] == "" || comment[i] ~ /^- /) print ".PP"
        if (comment[i] != "") print escaped(comment[i])
    }
    if (is_code) print ".fi"
    lines = 0
}

# Prints a declaration, and below it the comment that stands above it in the header.
function print_declaration() {
    printf ".PP\n.nf\n.ft B\n%s.ft R\n.fi\n", declaration
    declaration = ""
    if (lines) {
        print ".RS 4"
        print_comment()
        print ".RE"
    }
}

BEGIN {
    printf ".TH HUGEFORK 3 \"\" \"hugefork %s\" \"Library Functions Manual\"\n", version
    print ".SH NAME\nhugefork \\- memory regions on huge pages, with fork and snapshot in microseconds"
    print ".SH SYNOPSIS\n.nf\n.B #include <hugefork.h>\n.PP"
    print ".B cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs hugefork)\n.fi"
    print ".SH DESCRIPTION"
}

# The comment at the beginning of the header belongs to no declaration.
/^#ifndef HUGEFORK_H/ { print_comment() }

# Lines for the preprocessor and C++ only.
/^#(if|endif|include|define HUGEFORK_H)/ || /^extern "C"/ || /^}$/ { next }

declaration == "" && /^\/\* --+ / {
    gsub(/^\/\* -+ | \*\/$/, "")
    print ".SH " toupper($0)
    next
}

declaration == "" && (is_comment || /^\/\*/) {
    is_comment = !/\*\/$/
    gsub(/^ ?\/?\*+ ?| ?\*\/$/, "")
    # The first and the last line of a long comment are empty.
    if ($0 != "" || (lines && is_comment)) comment[++lines] = $0
    next
}

# A declaration ends at the first semicolon outside of braces; a macro, at the first line that is not continued.
declaration != "" || /./ {
    declaration = declaration escaped($0) "\n"
    depth += gsub(/[{]/, "{") - gsub(/[}]/, "}")
    if (declaration ~ /^#/ ? !/\\$/ : depth == 0 && /;/) {
        depth = 0
        print_declaration()
    }
}
