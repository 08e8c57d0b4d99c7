package shm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/internal/limits"
	"github.com/sluice-hpc/sluice/internal/retire"
	"github.com/sluice-hpc/sluice/verbs"
)

// segment is a mapped memfd.
type segment struct {
	mem  []byte
	fd   int  // -1 for a peer's segment: closed once mapped
	lent bool // see createSegment
	pool bool // of huge pages of the system's pool, which go back together
}

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// createSegment creates a sealed memfd of size bytes, a multiple of the page size, and
// allocates all its pages: a page that cannot be allocated later would be a SIGBUS at the
// first access. If users get slices of it (lent), its addresses stay mapped after close.
func createSegment(name string, size int, lent bool) (*segment, error) {
	fd, err := unix.MemfdCreate("sluice-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, limits.Files(os.NewSyscallError("memfd_create", err))
	}
	s := &segment{fd: fd}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		if err == unix.EFBIG {
			var l unix.Rlimit
			if unix.Getrlimit(unix.RLIMIT_FSIZE, &l) == nil {
				err := fmt.Errorf("%w: %d bytes of shared memory; RLIMIT_FSIZE (ulimit -f) is %d bytes", verbs.ErrNoMemory, size, l.Cur)
				return nil, errors.Join(err, s.close())
			}
		}
		return nil, errors.Join(os.NewSyscallError("ftruncate", err), s.close())
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(os.NewSyscallError("F_ADD_SEALS", err), s.close())
	}
	if lent {
		s.mem, err = retire.Map(fd, size, unix.MAP_SHARED)
	} else if s.mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		err = os.NewSyscallError("mmap", err)
	}
	switch {
	case errors.Is(err, unix.ENOMEM):
		err = fmt.Errorf("%w: %d bytes of addresses; see ulimit -v and vm.max_map_count: %w", verbs.ErrNoMemory, size, err)
	case err == nil:
		err = s.allocate(0, size)
	}
	if err != nil {
		return nil, errors.Join(err, s.close()) // no slice of it is known: its addresses go
	}
	s.lent = lent
	return s, nil
}

// createPooled creates a segment of at least size bytes of the system's pool of huge pages, all of them
// allocated; nil if size is less than a page, or the pool has too few.
func createPooled(size int) *segment {
	if size < hugePage {
		return nil
	}
	size = (size + hugePage - 1) &^ (hugePage - 1)
	if poolFree() < size/hugePage {
		return nil
	}
	fd, err := unix.MemfdCreate("sluice-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		return nil
	}
	s := &segment{fd: fd, pool: true}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err == nil { // not retire.Map: addresses that it would give up are not what is lacking
		s.mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		err = touch(s.mem)
	}
	if err != nil {
		s.close() // no slice of it is known: its addresses go
		return nil
	}
	s.lent = true
	return s
}

// poolFolder is where the kernel says what is in the pool: a variable for tests alone.
var poolFolder = "/sys/kernel/mm/hugepages/hugepages-2048kB/"

// poolFree returns how many huge pages of the pool may be had.
func poolFree() int {
	n := 0
	for name, sign := range map[string]int{"free_hugepages": 1, "resv_hugepages": -1} {
		text, err := os.ReadFile(poolFolder + name)
		if err != nil {
			return 0
		}
		v, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		n += sign * v
	}
	return n
}

// allocate allocates the pages of a range through this process's mapping: the kernel counts them as
// its memory, and ends it, not others, where the room that was there has gone meanwhile.
func (s *segment) allocate(off, n int) error {
	err := limits.Charge(n, func(from, to int) error { return populate(s.fd, s.mem, off+from, to-from) })
	if err != nil {
		err = fmt.Errorf("%w: shared memory: %w", verbs.ErrNoMemory, err)
	}
	return err
}

// hugePage is a size for which the kernel may use one page, of memory for which that is advised, where
// /sys/kernel/mm/transparent_hugepage/shmem_enabled admits it.
const hugePage = 2 << 20

// populate allocates and maps the pages of a range: huge ones, unless the room is so small that the range is.
func populate(fd int, mem []byte, off, n int) error {
	if len(mem) >= hugePage {
		advice := unix.MADV_HUGEPAGE
		if n < hugePage {
			advice = unix.MADV_NOHUGEPAGE
		}
		unix.Madvise(mem[off:off+n], advice) // best effort
	}
	err := touch(mem[off : off+n])
	if err != unix.EINVAL {
		return os.NewSyscallError("madvise", err)
	}
	err = fallocate(fd, 0, off, n)
	for i := off; i < off+n && err == nil; i += blockAlign {
		atomic.AddUint32((*uint32)(unsafe.Pointer(&mem[i])), 0) // maps the page
	}
	return err
}

// touch allocates and maps pages. Linux can do so from 5.14 on; EINVAL before.
func touch(mem []byte) error {
	for {
		if err := madvise(mem, unix.MADV_POPULATE_WRITE); err != unix.EINTR && err != unix.EAGAIN {
			return err
		}
	}
}

// madvise is a variable for tests alone.
var madvise = unix.Madvise

func fallocate(fd int, mode uint32, off, n int) error {
	for {
		if err := unix.Fallocate(fd, mode, int64(off), int64(n)); err != unix.EINTR {
			return os.NewSyscallError("fallocate", err)
		}
	}
}

// punch frees pages, in this process and in those that have mapped them: seals forbid
// changing the size, not that. An access to a freed page gets a page of zeros.
func (s *segment) punch(off, n int) error { return fallocate(s.fd, punchHole, off, n) }

const punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE

// openSegment maps a peer's segment and closes fd. It checks that the segment cannot shrink:
// by truncating it, a peer could kill this process.
func openSegment(fd int, size uint64) (*segment, error) {
	defer unix.Close(fd)
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, os.NewSyscallError("F_GET_SEALS", err)
	}
	if got&seals != seals {
		return nil, fmt.Errorf("peer's segment has seals %#x, want %#x", got, seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if size == 0 || st.Size != int64(size) {
		return nil, fmt.Errorf("peer's segment has %d bytes, its message says %d", st.Size, size)
	}
	mem, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	if len(mem) >= hugePage {
		unix.Madvise(mem, unix.MADV_HUGEPAGE) // as its owner has; best effort
	}
	return &segment{mem: mem, fd: -1}, nil
}

func (s *segment) close() error {
	var errs []error
	switch {
	case s.mem == nil:
	case s.lent:
		errs = append(errs, retire.Unmap(s.mem))
	default:
		errs = append(errs, os.NewSyscallError("munmap", unix.Munmap(s.mem)))
	}
	s.mem = nil
	if s.fd >= 0 {
		errs = append(errs, os.NewSyscallError("close", unix.Close(s.fd)))
		s.fd = -1
	}
	return errors.Join(errs...)
}

// control is the segment that describes a context to its peers.
type control struct {
	magic    uint64
	major    uint16
	minor    uint16
	arch     uint32
	pageSize uint32
	maxMR    uint32
	_        [128 - 24]byte

	doorbell uint32 // futex: counts wake-ups of the engine
	_        [128 - 4]byte

	boards boards // peers: see board

	regions [maxMR]region
}

// region is an entry of a context's table of regions, as its peers see it. The
// owner writes it; state is written last, and cleared first.
type region struct {
	state  uint64 // key | access flags << 32 | live << 63
	addr   uint64 // in the owner's process
	length uint64
	offset uint64 // in the arena
	arena  uint32 // index, or noArena: not in one
	pd     uint32
	_      [64 - 40]byte
}

const (
	noArena    = ^uint32(0)
	regionLive = 1 << 63

	controlSize = int(unsafe.Sizeof(control{}))
)

func newControl() (*segment, *control, error) {
	page := os.Getpagesize()
	s, err := createSegment("control", (controlSize+page-1)/page*page, false)
	if err != nil {
		return nil, nil, err
	}
	c := (*control)(unsafe.Pointer(unsafe.SliceData(s.mem)))
	c.magic, c.major, c.minor, c.arch = wireMagic, wireMajor, wireMinor, archCode()
	c.pageSize, c.maxMR = uint32(page), maxMR
	return s, c, nil
}

// viewControl checks the geometry of a peer's control segment.
func viewControl(s *segment) (*control, error) {
	if len(s.mem) < controlSize {
		return nil, fmt.Errorf("peer's control segment has %d bytes, want at least %d", len(s.mem), controlSize)
	}
	c := (*control)(unsafe.Pointer(unsafe.SliceData(s.mem)))
	if c.magic != wireMagic || c.major != wireMajor || c.arch != archCode() || c.maxMR != maxMR || int(c.pageSize) != os.Getpagesize() {
		return nil, fmt.Errorf("peer's control segment: magic %#x, version %d.%d, architecture %d, %d regions, pages of %d",
			c.magic, c.major, c.minor, c.arch, c.maxMR, c.pageSize)
	}
	return c, nil
}

// arenas holds a context's arenas: memory that peers map. Blocks are multiples of blockAlign;
// a freed block is merged with free neighbours. The pages of free blocks are returned to the system: at
// once if an arena is entirely unused and larger than arenaSize, otherwise when they have been free for
// trimAfter, because they are often needed again. Beyond keepUnused an unused arena is given back, and
// its number is not used again; one of huge pages of the pool is given back as soon as it is unused, for its
// pages could not be had again one by one.
type arenas struct {
	growing sync.Mutex // one allocation at a time; taken before Context.mu, which is taken before mu
	mu      sync.Mutex
	list    []*arena
	next    uint32      // number of the next one
	trims   *time.Timer // calls trim; nil unless pages are to be returned
	ending  bool        // what is freed keeps its bytes, for peers that have mapped it
	closed  bool

	borrowing sync.Mutex // one loan at a time; taken before Context.mu
}

type arena struct {
	*segment
	id   uint32
	free []span // ordered by offset, never adjacent
	all  []byte // its memory, also once it has been closed
	of   *arenas

	lender   *arena   // of another context, if this is a loan
	borrower *Context // of a loan

	passing sync.Mutex // guards:
	passes  int        // peers to which the descriptor is being passed, and loans
	gone    bool       // it has been given back, and is closed once passes is 0
	guests  []guest
	loans   []*Context // those that have borrowed it
}

// pass says whether the descriptor can be passed; then passed must be called.
func (ar *arena) pass() bool {
	ar.passing.Lock()
	defer ar.passing.Unlock()
	if !ar.gone {
		ar.passes++
	}
	return !ar.gone
}

func (ar *arena) passed() error {
	ar.passing.Lock()
	defer ar.passing.Unlock()
	if ar.passes--; ar.gone && ar.passes == 0 {
		return ar.close()
	}
	return nil
}

// giveBack closes it as soon as no peer is about to receive the descriptor and all loans have ended. Those
// without guests end now.
func (ar *arena) giveBack() error {
	ar.passing.Lock()
	ar.gone = true
	ar.passes++
	over := slices.DeleteFunc(slices.Clone(ar.loans), ar.hosts)
	ar.passing.Unlock()
	var errs []error
	for _, c := range over {
		errs = append(errs, c.endLoan(ar))
	}
	return errors.Join(append(errs, ar.passed())...)
}

func (ar *arena) unused() bool { return len(ar.free) == 1 && ar.free[0].n == len(ar.mem) }

type span struct {
	off, n int
	holes  bool // some of its pages have been returned to the system
	pages  bool // some may not have been
	idle   bool // it has been free since trim was called last
}

// blockAlign is a page: peers map arenas only of processes with the same page size, and
// memory is returned to the system by the page.
var blockAlign = os.Getpagesize()

const (
	arenaSize = 1 << 20 // smallest; a larger block gets an arena of its own size
	maxArenas = 1 << 16
	// lastReturned is the number of the last one that may be given back: the others are kept for
	// a process that goes on for long.
	lastReturned = maxArenas / 4 * 3
)

// keepUnused is a variable for tests alone.
var keepUnused = 16

// block is an allocated piece of an arena.
type block struct {
	arena *arena
	off   int
	mem   []byte
}

// alloc returns size zeroed bytes. It calls created with a new arena before any of the arena
// is used.
func (a *arenas) alloc(size int, created func(*arena)) (block, error) {
	n := (size + blockAlign - 1) &^ (blockAlign - 1)
	a.growing.Lock()
	defer a.growing.Unlock()
	if b, ok, err := a.reuse(n, size); ok || err != nil {
		clear(b.mem)
		return b, err
	}
	if a.next == maxArenas {
		return block{}, fmt.Errorf("%w: %d arenas", verbs.ErrNoMemory, maxArenas)
	}
	s := createPooled(n)
	if s == nil {
		page := os.Getpagesize()
		var err error
		if s, err = createSegment("arena", (max(n, arenaSize)+page-1)/page*page, true); err != nil {
			return block{}, err
		}
	}
	ar := &arena{segment: s, all: s.mem, of: a}
	a.mu.Lock()
	ar.id = a.next
	a.next++
	a.list = append(a.list, ar)
	a.mu.Unlock()
	local.Add(ar.all, ar)
	created(ar)
	a.mu.Lock()
	defer a.mu.Unlock()
	if n < len(s.mem) {
		ar.free = []span{{off: n, n: len(s.mem) - n, pages: !s.pool}}
	}
	return block{ar, 0, s.mem[:size:size]}, nil
}

// reuse takes a free block. It first allocates pages of it that were returned to the system:
// if there were none left when the block is used, the access would kill the process.
func (a *arenas) reuse(n, size int) (block, bool, error) {
	ar, s, ok := a.take(n)
	if !ok {
		return block{}, false, nil
	}
	if s.holes {
		if err := ar.allocate(s.off, s.n); err != nil {
			fallocate(ar.fd, punchHole, s.off, s.n) // what has been allocated so far
			a.mu.Lock()
			a.give(ar, s)
			a.mu.Unlock()
			return block{}, false, err
		}
	}
	return block{ar, s.off, ar.mem[s.off : s.off+size : s.off+size]}, true, nil
}

func (a *arenas) take(n int) (*arena, span, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ar := range a.list {
		if s, ok := ar.take(n); ok {
			return ar, s, true
		}
	}
	return nil, span{}, false
}

func (ar *arena) take(n int) (span, bool) {
	for i, f := range ar.free {
		if f.n < n {
			continue
		}
		if f.n == n {
			ar.free = append(ar.free[:i], ar.free[i+1:]...)
		} else {
			ar.free[i].off, ar.free[i].n = f.off+n, f.n-n
		}
		return span{off: f.off, n: n, holes: f.holes, pages: f.pages}, true
	}
	return span{}, false
}

// end has the blocks that are still used keep their bytes until close, whatever is freed.
func (a *arenas) end() {
	a.growing.Lock() // a trim that has begun returns what was free before
	defer a.growing.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending = true
}

// release frees a block. If its arena is to be given back, it is in no list any more.
func (a *arenas) release(b block) (returned *arena) {
	ar := b.arena
	a.mu.Lock()
	if a.ending {
		a.mu.Unlock()
		return nil
	}
	whole := a.give(ar, span{off: b.off, n: (len(b.mem) + blockAlign - 1) &^ (blockAlign - 1), pages: !ar.pool})
	if whole && a.drop(ar) {
		a.mu.Unlock()
		return ar
	}
	if !whole || len(ar.mem) <= arenaSize || ar.pool {
		a.trimLater()
		a.mu.Unlock()
		return nil
	}
	s, _ := ar.take(len(ar.mem))
	a.mu.Unlock() // what follows takes time
	a.empty(ar, s)
	return nil
}

// empty returns the pages of a span that is not among the free ones to the system, and frees it.
func (a *arenas) empty(ar *arena, s span) {
	if ar.punch(s.off, s.n) == nil {
		s.holes, s.pages = true, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.give(ar, s)
}

// trimAfter is a variable for tests alone.
var trimAfter = time.Second

// trimLater has trim called. The caller holds mu.
func (a *arenas) trimLater() {
	if a.trims == nil && !a.closed {
		a.trims = time.AfterFunc(trimAfter, a.trim)
	}
}

// trim returns the pages of what has been free since the last time, at least.
func (a *arenas) trim() {
	a.growing.Lock() // close waits
	defer a.growing.Unlock()
	a.mu.Lock()
	a.trims = nil
	idle := map[*arena][]span{}
	for _, ar := range a.list { // empty if they are closed
		ar.free = slices.DeleteFunc(ar.free, func(s span) bool {
			if s.idle && s.pages {
				idle[ar] = append(idle[ar], s)
			}
			return s.idle && s.pages
		})
		for i := range ar.free {
			if s := &ar.free[i]; s.pages {
				s.idle = true
				a.trimLater()
			}
		}
	}
	a.mu.Unlock()
	for ar, list := range idle {
		for _, s := range list {
			a.empty(ar, s)
		}
	}
}

// drop takes an unused arena out of the list if there are enough others. The caller holds the lock.
func (a *arenas) drop(ar *arena) bool {
	n := 0
	for _, o := range a.list {
		if o.unused() {
			n++
		}
	}
	i := slices.Index(a.list, ar)
	if i < 0 || n <= keepUnused && !ar.pool || ar.id > lastReturned {
		return false
	}
	a.list = slices.Delete(a.list, i, i+1)
	return true
}

// give frees a span, and says whether all of the arena is free. The caller holds the lock.
func (a *arenas) give(ar *arena, s span) (whole bool) {
	s.idle = false
	i := 0
	for i < len(ar.free) && ar.free[i].off < s.off {
		i++
	}
	if i < len(ar.free) && s.off+s.n == ar.free[i].off {
		s.n += ar.free[i].n
		s.holes = s.holes || ar.free[i].holes
		s.pages = s.pages || ar.free[i].pages
		ar.free = append(ar.free[:i], ar.free[i+1:]...)
	}
	if i > 0 && ar.free[i-1].off+ar.free[i-1].n == s.off {
		ar.free[i-1].n += s.n
		ar.free[i-1].holes = ar.free[i-1].holes || s.holes
		ar.free[i-1].pages = ar.free[i-1].pages || s.pages
		ar.free[i-1].idle = false
	} else {
		ar.free = append(ar.free[:i], append([]span{s}, ar.free[i:]...)...)
	}
	return ar.unused()
}

// get returns the arena of a number, nil if there is none.
func (a *arenas) get(id uint32) *arena {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ar := range a.list {
		if ar.id == id {
			return ar
		}
	}
	return nil
}

func (a *arenas) snapshot() []*arena {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]*arena(nil), a.list...)
}

func (a *arenas) close() error {
	a.growing.Lock()
	defer a.growing.Unlock()
	a.mu.Lock()
	if a.closed = true; a.trims != nil {
		a.trims.Stop()
	}
	list := a.list
	a.list = nil
	a.mu.Unlock()
	var errs []error
	for _, ar := range list {
		errs = append(errs, ar.giveBack())
	}
	return errors.Join(errs...)
}
