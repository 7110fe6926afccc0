// A program whose runtime handles SIGSEGV itself, for nil pointers. It does so before there is a region, while its
// goroutines write to one and snapshots are taken, and afterwards.
package main

// #include "hosted.h"
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	length    = 16 << 20
	page      = 4096
	writers   = 2
	snapshots = 60
)

type node struct {
	value int64
}

//go:noinline
func valueOf(node *node) int64 {
	return node.value
}

func isCaught() (caught bool) {
	defer func() { caught = recover() != nil }()
	valueOf(nil)
	return false
}

func checkNils(rounds int) {
	for round := 0; round < rounds; round++ {
		check(isCaught(), "a nil pointer was not caught")
	}
}

func check(isSo bool, what string) {
	if !isSo {
		fmt.Fprintln(os.Stderr, what)
		os.Exit(1)
	}
}

var over atomic.Bool

// Counts in places of its own, one after the other: an earlier one is never behind.
func write(region unsafe.Pointer, writer int) {
	for count := int64(1); !over.Load(); count++ {
		for at := writer * 8; at < length; at += page {
			word := (*int64)(unsafe.Add(region, at))
			check(atomic.LoadInt64(word) == count-1, "a write was lost")
			atomic.StoreInt64(word, count)
		}
	}
}

func checkCut(snapshot *C.hf_snapshot) {
	for writer := 0; writer < writers; writer++ {
		first := int64(C.hosted_read(snapshot, C.size_t(writer*8)))
		last := first
		for at := writer * 8; at < length; at += page {
			here := int64(C.hosted_read(snapshot, C.size_t(at)))
			check(here <= last && here >= 0 && here+1 >= first, fmt.Sprint("a cut has ", here, " after ", last))
			last = here
		}
	}
}

func main() {
	checkNils(1000)
	if C.hosted_open(length) != 0 {
		check(false, C.GoString(C.hf_last_error()))
	}
	checkNils(1000)
	var all sync.WaitGroup
	for writer := 0; writer < writers; writer++ {
		all.Go(func() { write(C.hosted_address(), writer) })
	}
	all.Go(func() {
		for !over.Load() {
			checkNils(100)
		}
	})
	// The collector stops all others.
	all.Go(func() {
		for !over.Load() {
			_ = make([]byte, 1<<20)
			runtime.GC()
		}
	})
	for round := 0; round < snapshots; round++ {
		snapshot := C.hosted_snapshot()
		check(snapshot != nil, "there is no snapshot")
		checkCut(snapshot)
		C.hf_snapshot_close(snapshot)
	}
	over.Store(true)
	all.Wait()
	checkNils(1000)
	check(C.hosted_end() != 0, "blocks are missing")
	checkNils(1000)
	fmt.Println("all is well")
}
