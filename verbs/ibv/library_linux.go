//go:build cgo

package ibv

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/dl"
	"github.com/sluice-hpc/sluice/internal/rdmadev"
	"github.com/sluice-hpc/sluice/verbs"
)

// load opens libibverbs, once for the process.
var load = sync.OnceValue(func() error {
	symbols := make([]dl.Symbol, 0, C.sl_symbol_count)
	for _, s := range unsafe.Slice((*C.struct_sl_symbol)(unsafe.Pointer(&C.sl_symbols)), C.sl_symbol_count) {
		symbols = append(symbols, dl.Symbol{Name: C.GoString(s.name), Version: C.GoString(s.version), To: unsafe.Pointer(s.to), Optional: s.optional != 0})
	}
	return dl.Open(cmp.Or(os.Getenv(EnvLibrary), "libibverbs.so.1"), symbols)
})

// eachDevice calls f with each device that libibverbs lists, until f returns false.
func eachDevice(f func(list C.uintptr_t, i int, name string) bool) error {
	if err := load(); err != nil {
		return err
	}
	var n, errno C.int
	list := C.sl_get_device_list(&n, &errno)
	if list == 0 {
		return syscall.Errno(errno)
	}
	defer C.sl_free_device_list(list)
	for i := range int(n) {
		if !f(list, i, C.GoString(C.sl_get_device_name(list, C.int(i)))) {
			return nil
		}
	}
	return nil
}

// Probe looks for the library, for RDMA support in the kernel, and for a usable device that
// this process may open.
func (provider) Probe() verbs.Probe {
	if err := load(); err != nil {
		return verbs.Probe{Answer: verbs.No, Reason: err.Error()}
	}
	var devices []string
	err := eachDevice(func(_ C.uintptr_t, _ int, name string) bool { devices = append(devices, name); return true })
	switch {
	case errors.Is(err, syscall.ENOSYS):
		return verbs.Probe{Answer: verbs.No, Reason: "the kernel has no RDMA support (is module ib_uverbs loaded?)"}
	case err != nil:
		return verbs.Probe{Answer: verbs.Unknown, Reason: fmt.Sprintf("cannot list devices: %v", err)}
	case len(devices) == 0:
		return verbs.Probe{Answer: verbs.No, Reason: "no RDMA device"}
	}
	usable := slices.DeleteFunc(slices.Clone(devices), rdmadev.IWARP)
	if len(usable) == 0 {
		return verbs.Probe{Answer: verbs.No, Reason: fmt.Sprintf("only iWARP devices, which are not supported: %q", devices)}
	}
	if file := forbidden(usable); file != "" {
		return verbs.Probe{Answer: verbs.No, Reason: file + " exists, but this process may not open it"}
	}
	return verbs.Probe{Answer: verbs.Yes}
}

// Devices lists the devices, those nearest to the CPUs of this process first and those of
// iWARP last.
func (provider) Devices() ([]verbs.DeviceInfo, error) {
	var names []string
	err := eachDevice(func(_ C.uintptr_t, _ int, name string) bool {
		names = append(names, name)
		return true
	})
	var infos []verbs.DeviceInfo
	usable := slices.DeleteFunc(slices.Clone(names), rdmadev.IWARP)
	others := slices.DeleteFunc(names, func(name string) bool { return slices.Contains(usable, name) })
	for _, name := range append(rdmadev.Nearest(usable, rdmadev.CPUs()), others...) {
		infos = append(infos, verbs.DeviceInfo{Name: name, Netdev: rdmadev.Netdev(name, 1)})
	}
	return infos, err
}

func (provider) Open(device string, cfg verbs.Config) (verbs.ProviderContext, error) {
	const op = "open"
	if rdmadev.IWARP(device) {
		return nil, verbs.Errorf(device, op, verbs.ErrNotSupported, "iWARP has no immediate data, no retries for a receiver that is not ready, and completes a write before it is in the peer's memory; use provider tcp over the same network")
	}
	var h C.uintptr_t
	var errno C.int
	var have []string
	err := eachDevice(func(list C.uintptr_t, i int, name string) bool {
		have = append(have, name)
		if name == device {
			h = C.sl_open_device(list, C.int(i), &errno)
			return false
		}
		return true
	})
	switch {
	case err != nil:
		return nil, verbs.Errorf(device, op, err, "cannot list devices")
	case h == 0 && errno == 0:
		return nil, verbs.Errorf(device, op, verbs.ErrNoDevice, "devices here: %q", have)
	case h == 0:
		return nil, failure(device, op, errno, "check access to its character device in /dev/infiniband")
	}
	c, err := newContext(device, h, cfg)
	if err != nil {
		return nil, errors.Join(err, failure(device, op, C.sl_close_device(h), "closing it again"))
	}
	return c, nil
}

// failure returns the error for an error number of libibverbs; nil for 0.
func failure(device, op string, errno C.int, format string, args ...any) error {
	if errno == 0 {
		return nil
	}
	number := syscall.Errno(errno)
	detail := fmt.Sprintf(format, args...)
	for _, k := range []struct {
		number syscall.Errno
		err    error
	}{
		{syscall.EINVAL, verbs.ErrInvalid}, {syscall.ENOMEM, verbs.ErrNoMemory}, {syscall.EBUSY, verbs.ErrBusy},
		{syscall.EOPNOTSUPP, verbs.ErrNotSupported}, {syscall.ENOSYS, verbs.ErrNotSupported},
		{syscall.ENODEV, verbs.ErrNoDevice}, {syscall.EIO, verbs.ErrNoDevice},
	} {
		if number == k.number {
			return verbs.Errorf(device, op, fmt.Errorf("%w (%w)", k.err, number), "%s", detail)
		}
	}
	return verbs.Errorf(device, op, number, "%s", detail)
}
