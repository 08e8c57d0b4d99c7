//go:build cgo

package pmix

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"sync"
	"unsafe"

	"github.com/sluice-hpc/sluice/internal/dl"
)

// Built says that this program can call the library.
const Built = true

var (
	mu     sync.Mutex // of opened
	opened bool
)

// Open opens the library in file, or libpmix.so.2 if that is empty. The first one that can be opened
// stays open for the process: opening again does nothing.
func Open(file string) error {
	mu.Lock()
	defer mu.Unlock()
	if opened {
		return nil
	}
	symbols := make([]dl.Symbol, C.sl_pmix_symbols)
	for i := range symbols {
		s := &C.sl_pmix_table[i]
		symbols[i] = dl.Symbol{Name: C.GoString(s.name), To: unsafe.Pointer(s.to), Optional: s.optional != 0}
	}
	err := dl.Open(cmp.Or(file, "libpmix.so.2"), symbols)
	opened = err == nil
	return err
}

// Client is this process as a client of its launcher. It is used by one goroutine at a time.
type Client struct {
	self C.struct_sl_pmix_proc
}

func failure(call string, status C.int) error {
	if status == C.sl_success {
		return nil
	}
	return &Error{Call: call, Status: int(status), Text: C.GoString(C.sl_pmix_error(status))}
}

// Init connects to the launcher, after Open. The library counts: an MPI in this process does the
// same, and what each has begun it must itself [Client.Finalize].
func Init() (*Client, error) {
	c := new(Client)
	if err := failure("PMIx_Init", C.sl_pmix_init(&c.self)); err != nil {
		return nil, err
	}
	return c, nil
}

// Finalize ends what Init has begun.
func (c *Client) Finalize() error { return failure("PMIx_Finalize", C.sl_pmix_finalize()) }

// Place returns what the launcher says of this process.
func (c *Client) Place() (p Place, err error) {
	p = Place{Namespace: C.GoString(&c.self.nspace[0]), Rank: int(c.self.rank), LocalRank: -1}
	job := c.self
	job.rank = C.SL_RANK_WILDCARD
	if p.Size, err = number(&job, C.SL_JOB_SIZE); err != nil {
		return Place{}, err
	}
	size, err := number(&job, C.SL_LOCAL_SIZE)
	rank, err2 := number(&c.self, C.SL_LOCAL_RANK)
	if err == nil && err2 == nil && 1 <= size && size <= p.Size && rank < size {
		p.LocalRank, p.LocalSize = rank, size
	}
	return p, nil
}

func number(of *C.struct_sl_pmix_proc, key string) (int, error) {
	name := C.CString(key)
	defer C.free(unsafe.Pointer(name))
	var n C.uint32_t
	err := failure("PMIx_Get "+key, C.sl_pmix_get_number(of, name, &n))
	return int(n), err
}

// Put gives a value to the other processes of the job: they can read it after the next Fence.
func (c *Client) Put(key, value string) error {
	k, v := C.CString(key), C.CString(value)
	defer C.free(unsafe.Pointer(k))
	defer C.free(unsafe.Pointer(v))
	return failure("PMIx_Put "+key, C.sl_pmix_put(k, v))
}

// Fence waits, without a limit, until all processes of the job have called it.
func (c *Client) Fence() error { return failure("PMIx_Fence", C.sl_pmix_fence()) }

// Get returns the value that a rank has put.
func (c *Client) Get(rank int, key string) (string, error) {
	of := c.self
	of.rank = C.uint32_t(rank)
	name := C.CString(key)
	defer C.free(unsafe.Pointer(name))
	var value *C.char
	if err := failure(fmt.Sprintf("PMIx_Get %s of rank %d", key, rank), C.sl_pmix_get_string(&of, name, &value)); err != nil {
		return "", err
	}
	defer C.free(unsafe.Pointer(value))
	return C.GoString(value), nil
}
