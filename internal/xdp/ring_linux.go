package xdp

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is a ring shared by the kernel and a process: struct xdp_ring of the kernel, then the
// descriptors. Indices are free-running, and taken modulo the size.
type ring struct {
	mem              []byte
	prod, cons, flag *uint32
	desc             unsafe.Pointer
	mask             uint32
}

// kind is a kind of ring: the option that creates it, its mapping offset, and its entry size.
type kind struct {
	option int
	offset int64
	size   int // bytes of a descriptor
	of     func(*unix.XDPMmapOffsets) unix.XDPRingOffset
}

var (
	rxRing   = kind{unix.XDP_RX_RING, unix.XDP_PGOFF_RX_RING, 16, func(o *unix.XDPMmapOffsets) unix.XDPRingOffset { return o.Rx }}
	txRing   = kind{unix.XDP_TX_RING, unix.XDP_PGOFF_TX_RING, 16, func(o *unix.XDPMmapOffsets) unix.XDPRingOffset { return o.Tx }}
	fillRing = kind{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_PGOFF_FILL_RING, 8, func(o *unix.XDPMmapOffsets) unix.XDPRingOffset { return o.Fr }}
	compRing = kind{unix.XDP_UMEM_COMPLETION_RING, unix.XDP_UMEM_PGOFF_COMPLETION_RING, 8, func(o *unix.XDPMmapOffsets) unix.XDPRingOffset { return o.Cr }}
)

// mapRing maps a ring of n descriptors, a power of two, which the socket has.
func mapRing(fd int, k kind, n int) (*ring, error) {
	var off unix.XDPMmapOffsets
	size := uint32(unsafe.Sizeof(off))
	if err := getsockopt(fd, unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off), &size); err != nil {
		return nil, fmt.Errorf("get XDP_MMAP_OFFSETS: %w", err)
	}
	if int(size) < int(unsafe.Sizeof(off)) {
		return nil, errors.New("AF_XDP rings have no flags: this needs Linux 5.4 or later")
	}
	o := k.of(&off)
	mem, err := unix.Mmap(fd, k.offset, int(o.Desc)+n*k.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map ring: %w", err)
	}
	at := func(off uint64) *uint32 { return (*uint32)(unsafe.Pointer(&mem[off])) }
	return &ring{mem: mem, prod: at(o.Producer), cons: at(o.Consumer), flag: at(o.Flags), desc: unsafe.Pointer(&mem[o.Desc]), mask: uint32(n - 1)}, nil
}

func (r *ring) close() {
	if r != nil {
		unix.Munmap(r.mem)
	}
}

// packet returns the descriptor at an index of a ring of packets, addr that of a ring of
// frames.
func (r *ring) packet(i uint32) *unix.XDPDesc {
	return (*unix.XDPDesc)(unsafe.Add(r.desc, uintptr(i&r.mask)*unsafe.Sizeof(unix.XDPDesc{})))
}

func (r *ring) addr(i uint32) *uint64 {
	return (*uint64)(unsafe.Add(r.desc, uintptr(i&r.mask)*8))
}

// wakeup reports whether the kernel needs a system call to look at the ring.
func (r *ring) wakeup() bool { return atomic.LoadUint32(r.flag)&unix.XDP_RING_NEED_WAKEUP != 0 }
