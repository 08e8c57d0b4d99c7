// Package vast has memory for messages beyond 4 GiB, of which both ends fit into the memory of a small host.
package vast

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Len is the length of the messages: beyond 4 GiB, and no multiple of anything.
const Len = 5<<30 + 123

// Period is after how many bytes a message repeats: whole pages, by which no power of two from 64 MiB on can be
// divided, so that a length or an offset of 32 bits gives other bytes.
const Period = 15617 * 4096

// Source returns a message of Len bytes, which takes the memory of a period, and that period.
func Source(t testing.TB) (message, period []byte) {
	fd, err := unix.MemfdCreate("sluice-test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Ftruncate(fd, Period))
	period, err = unix.Mmap(fd, 0, Period, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	Fill(period)
	message = Sink(t)
	for at := 0; at < Len; at += Period {
		_, err := unix.MmapPtr(fd, 0, unsafe.Pointer(&message[at]), uintptr(min(Period, Len-at)), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED)
		require.NoError(t, err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Munmap(period)) })
	return message, period
}

// Fill makes a period.
func Fill(period []byte) {
	var seed [32]byte
	_, _ = rand.NewChaCha8(seed).Read(period) // never fails
}

// Sink returns Len bytes that have not been written yet.
func Sink(t testing.TB) []byte {
	b, err := unix.Mmap(-1, 0, Len, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // saves time, where there are such
	return b
}

// Check checks each byte of a message that has been received.
func Check(t testing.TB, message, period []byte) {
	require.Len(t, message, Len)
	for at := 0; at < Len; at += Period {
		got := message[at:min(at+Period, Len)]
		require.True(t, bytes.Equal(got, period[:len(got)]), "bytes from %d on", at)
	}
}
