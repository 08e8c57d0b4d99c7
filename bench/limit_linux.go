package main

import (
	"context"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// declarePeek has rank 0 read memory of the next rank with process_vm_readv(2).
func declarePeek(ctx context.Context, b *bed, m *measurement) (series, error) {
	s, err := newCopying(b, m)
	type place struct {
		PID     int     `json:"pid"`
		Address uintptr `json:"address"`
	}
	all, err := share(ctx, b, place{os.Getpid(), uintptr(unsafe.Pointer(unsafe.SliceData(s.from)))}, err)
	if err != nil {
		return nil, err
	}
	_, next := neighbours(b)
	there := []unix.RemoteIovec{{Base: all[next].Address, Len: len(s.from)}}
	s.read = func(into []byte) error {
		here := []unix.Iovec{{Base: unsafe.SliceData(into)}}
		here[0].SetLen(len(into))
		n, err := unix.ProcessVMReadv(all[next].PID, here, there, 0)
		if err == nil && n != len(into) {
			err = fmt.Errorf("%d of %d bytes", n, len(into))
		}
		if err != nil {
			return fmt.Errorf("read memory of rank %d: %w", next, err)
		}
		return nil
	}
	return s, nil
}
