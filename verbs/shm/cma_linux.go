package shm

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reading another process' memory (process_vm_readv(2), "cross memory attach").

// maxIovecs is the kernel's limit for one call (UIO_MAXIOV).
const maxIovecs = 1024

// readPeer copies from the peer's address into the local pieces, which are n
// bytes in all. It returns false if that is not allowed or not possible, or if the
// peer has died meanwhile: its PID may then belong to another process, and the
// bytes read are void.
func (l *link) readPeer(local []unix.Iovec, addr uint64, n int) bool {
	remote := unix.RemoteIovec{Base: uintptr(addr), Len: n}
	for n > 0 {
		got, _, e := syscall.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(l.pid),
			uintptr(unsafe.Pointer(unsafe.SliceData(local))), uintptr(len(local)), uintptr(unsafe.Pointer(&remote)), 1, 0)
		if e == unix.EINTR {
			continue
		}
		if e != 0 || got == 0 {
			return false
		}
		n -= int(got)
		remote.Base += got
		remote.Len -= int(got)
		for got > 0 && n > 0 {
			take := min(uint64(got), uint64(local[0].Len))
			local[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(local[0].Base), take))
			local[0].SetLen(int(uint64(local[0].Len) - take))
			got -= uintptr(take)
			if local[0].Len == 0 {
				local = local[1:]
			}
		}
	}
	return l.self || processAlive(l.pidfd)
}

// processAlive polls a pidfd, which is readable once its process has ended.
func processAlive(pidfd int) bool {
	p := [1]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	var now unix.Timespec
again:
	n, _, e := syscall.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	if e == unix.EINTR {
		goto again
	}
	return e == 0 && n == 0
}

// probeRead tries to read the magic at addr in the peer.
func probeRead(pid int, addr uint64) bool {
	var magic uint64
	local := [1]unix.Iovec{{Base: (*byte)(unsafe.Pointer(&magic)), Len: 8}}
	remote := [1]unix.RemoteIovec{{Base: uintptr(addr), Len: 8}}
	n, err := unix.ProcessVMReadv(pid, local[:], remote[:], 0)
	return err == nil && n == 8 && magic == wireMagic
}
