/* Samples of a CPython 3.11 process by its own processor time: which function runs, user or kernel.

   A SIGPROF timer counts the time of all threads; each signal looks at the Python frames of the
   thread that it hits and adds to a table in a shared file, which others may read at any time.  A
   signal that was raised inside a system call arrives behind the instruction `syscall`.

   A record: 8 bytes each for samples in user mode, in the kernel, and with this function anywhere
   on the stack; then name and file, 104 and 128 bytes.  Nothing here allocates or takes a lock.
   A frame that is just being left may lie in memory that is gone: the kernel reads it for us. */
#define _GNU_SOURCE
#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_frame.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

enum { RECORDS = 4096, DEPTH = 64 };

struct record {
    uint64_t user, kernel, whole;
    char name[104], file[128];
};

static struct record *records;
static PyCodeObject *codes[RECORDS];
static PyObject *names[RECORDS];

static int reads(void *to, const void *from, size_t size) {
    struct iovec here = {to, size}, there = {(void *)from, size};
    return from && process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)size;
}

static void copy(char *to, size_t room, PyObject *text) {
    PyASCIIObject head;
    if (reads(&head, text, sizeof head) && head.state.compact && head.state.ascii) {
        size_t length = (size_t)head.length;
        size_t skipped = length < room ? 0 : length - room + 1;
        reads(to, (char *)text + sizeof head + skipped, length - skipped);
    }
}

static struct record *record_of(PyCodeObject *code) {
    PyCodeObject found;
    if (!reads(&found, code, sizeof found) || Py_TYPE(&found) != &PyCode_Type) {
        return NULL;
    }
    size_t at = ((uintptr_t)code >> 4) % RECORDS;
    for (int tries = 0; tries < RECORDS; tries++, at = (at + 1) % RECORDS) {
        PyCodeObject *none = NULL;
        __atomic_compare_exchange_n(&codes[at], &none, code, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        if (codes[at] != code) {
            continue;
        }
        if (names[at] != found.co_qualname) {   /* new, or in the place of a module's that is done */
            names[at] = found.co_qualname;
            memset(&records[at], 0, sizeof *records);
            copy(records[at].name, sizeof records[at].name, found.co_qualname);
            copy(records[at].file, sizeof records[at].file, found.co_filename);
        }
        return &records[at];
    }
    return NULL;
}

static void on_signal(int number, siginfo_t *info, void *context) {
    const unsigned char *next = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    int error = errno, in_kernel = next[-2] == 0x0f && next[-1] == 0x05;
    PyThreadState *thread = PyGILState_GetThisThreadState();
    struct _PyInterpreterFrame *at = thread ? thread->cframe->current_frame : NULL, frame;
    struct record *seen[DEPTH];
    for (int depth = 0; depth < DEPTH && reads(&frame, at, sizeof frame); depth++, at = frame.previous) {
        struct record *record = record_of(frame.f_code);
        seen[depth] = record;
        if (!record) {
            continue;
        }
        if (depth == 0) {
            __atomic_fetch_add(in_kernel ? &record->kernel : &record->user, 1, __ATOMIC_RELAXED);
        }
        int earlier = 0;
        while (earlier < depth && seen[earlier] != record) {
            earlier++;
        }
        if (earlier == depth) {
            __atomic_fetch_add(&record->whole, 1, __ATOMIC_RELAXED);
        }
    }
    errno = error;
}

/* Begins; `fd` is a file with room for all records.  0, or -1. */
int sample_into(int fd, long interval_us) {
    records = mmap(NULL, RECORDS * sizeof *records, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (records == MAP_FAILED) {
        return -1;
    }
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_RESTART | SA_SIGINFO};
    struct itimerval timer = {{0, interval_us}, {0, interval_us}};
    return sigaction(SIGPROF, &action, NULL) || setitimer(ITIMER_PROF, &timer, NULL) ? -1 : 0;
}
