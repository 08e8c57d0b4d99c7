//go:build linux && cgo

// Package dl opens libraries of the system when they are needed, so that one program runs with and
// without them.
package dl

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Symbol is a function of a library.
type Symbol struct {
	Name     string
	Version  string         // of the symbol; empty: the default one
	To       unsafe.Pointer // to the pointer, in memory of C, that becomes its address
	Optional bool           // it may be missing: the pointer becomes NULL
}

// Open opens the library in file, found as the dynamic linker finds it, and looks up the symbols. The
// library stays open, unless a symbol is missing.
func Open(file string, symbols []Symbol) error {
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	lib := C.dlopen(name, C.RTLD_NOW|C.RTLD_LOCAL)
	if lib == nil {
		return errors.New(C.GoString(C.dlerror()))
	}
	for _, s := range symbols {
		p := find(lib, s)
		if p == nil && !s.Optional {
			C.dlclose(lib)
			at := s.Name
			if s.Version != "" {
				at += "@" + s.Version
			}
			return fmt.Errorf("%s: no symbol %s", file, at)
		}
		*(*unsafe.Pointer)(s.To) = p
	}
	return nil
}

func find(lib unsafe.Pointer, s Symbol) unsafe.Pointer {
	name := C.CString(s.Name)
	defer C.free(unsafe.Pointer(name))
	if s.Version == "" {
		return C.dlsym(lib, name)
	}
	version := C.CString(s.Version)
	defer C.free(unsafe.Pointer(version))
	return C.dlvsym(lib, name, version)
}
