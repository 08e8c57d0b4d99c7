package main

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelRelease returns what 'uname -r' prints.
func kernelRelease() string { return fileText("/proc/sys/kernel/osrelease") }

func fileText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// memlock returns how many bytes this process may pin, and to how many it may raise that
// limit; -1: without limit. The kernel does not apply it to processes with CAP_IPC_LOCK.
func memlock() (now, most *int64) {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) != nil {
		return nil, nil
	}
	limit := func(v uint64) *int64 {
		n := int64(-1)
		if v <= math.MaxInt64 {
			n = int64(v)
		}
		return &n
	}
	return limit(r.Cur), limit(r.Max)
}

// hugePages lists the pools of huge pages (Documentation/admin-guide/mm/hugetlbpage.rst).
func hugePages() []hugePageEntry {
	pools, _ := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB") // the pattern is sound
	var list []hugePageEntry
	for _, p := range pools {
		kib := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(p), "hugepages-"), "kB")
		var n [3]int64
		for i, s := range []string{kib, fileText(filepath.Join(p, "nr_hugepages")), fileText(filepath.Join(p, "free_hugepages"))} {
			n[i], _ = strconv.ParseInt(s, 10, 64) // 0 where it cannot be read
		}
		list = append(list, hugePageEntry{n[0] << 10, n[1], n[2]})
	}
	return list
}

// sharedHuge says when the kernel uses huge pages for shared memory: the word in brackets of its setting.
func sharedHuge() string {
	_, word, _ := strings.Cut(fileText("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), "[")
	word, _, _ = strings.Cut(word, "]")
	return word
}

// accessible returns why this process cannot read and write a file, or nil.
func accessible(path string) error { return unix.Access(path, unix.R_OK|unix.W_OK) }
