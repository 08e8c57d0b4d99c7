package xdp

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Options of a port.
type Options struct {
	Index  int // of the interface
	MTU    int // of the interface, in bytes
	Queue  int // of the interface
	Native bool
	Seats  int // a power of two
	Ring   int // descriptors of each ring of a seat, a power of two
}

// Port is a queue of an interface. Its methods are safe for concurrent use.
type Port struct {
	opt   Options
	shape Shape
	mem   []byte
	memFD int
	ctl   control
	rings int // socket of the fill ring and the completion ring
	fill  *ring
	maps  maps
	prog  *ebpf.Program
	link  link.Link

	mu    sync.Mutex
	seats []*tenant // nil: free
	taken int
	given int // frames given to the kernel to receive into
}

// tenant is the user of a seat.
type tenant struct {
	key    []byte
	socket int // AF_XDP
	udp    int // UDP socket that keeps the UDP port taken while it is open
}

// Grant holds what [NewSeat] needs. Its holder owns the descriptors.
type Grant struct {
	Shape  Shape
	Number int // of the seat
	Socket int // descriptor: the AF_XDP socket
	Rings  int // descriptor: the socket of the shared rings
	Memory int // descriptor
}

// Close closes the descriptors.
func (g *Grant) Close() {
	for _, fd := range []int{g.Socket, g.Rings, g.Memory} {
		unix.Close(fd)
	}
}

// OpenPort registers memory, binds the queue, and attaches the program. It needs CAP_NET_RAW,
// CAP_NET_ADMIN and CAP_BPF, and a sufficient limit of locked memory or CAP_IPC_LOCK. The
// interface is looked up in the network namespace of the calling thread.
func OpenPort(o Options) (_ *Port, err error) {
	p := &Port{opt: o, shape: Shape{Chunk: 4096, Seats: o.Seats, Ring: o.Ring}, memFD: -1, rings: -1, seats: make([]*tenant, o.Seats)}
	const vlan = 4 // bytes of a tag
	if o.MTU+ethLen+vlan <= 2048-headroom {
		p.shape.Chunk = 2048
	}
	if err := p.shape.check(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if err := p.register(); err != nil {
		return nil, err
	}
	if p.maps, err = newMaps(o.Seats); err != nil {
		return nil, err
	}
	// With a program that takes frags, the kernel copies every short packet of generic XDP to
	// a new buffer; with one that does not, it linearizes long messages of other traffic. A
	// driver refuses such a program, or switches off what would need linearizing.
	frags := p.shape.Multi && (o.Native || p.shape.Chunk > 2048)
	if p.prog, err = load(p.maps, o.Queue, o.MTU, frags); err != nil {
		return nil, err
	}
	mode := link.XDPGenericMode
	if o.Native {
		mode = link.XDPDriverMode
	}
	if p.link, err = link.AttachXDP(link.XDPOptions{Program: p.prog, Interface: o.Index, Flags: mode}); err != nil {
		return nil, fmt.Errorf("attach XDP program: %w", err)
	}
	return p, nil
}

// register registers the memory with the kernel, and binds the queue.
func (p *Port) register() (err error) {
	if p.memFD, err = unix.MemfdCreate("sluice-xdp", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	size := p.shape.bytes()
	if err := unix.Ftruncate(p.memFD, int64(size)); err != nil {
		return fmt.Errorf("allocate memory of %d bytes: %w", size, err)
	}
	// Without seals, a process with the descriptor could truncate the memory that others use.
	if _, err := unix.FcntlInt(uintptr(p.memFD), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal memory: %w", err)
	}
	if p.mem, err = unix.Mmap(p.memFD, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map memory of %d bytes: %w", size, err)
	}
	p.ctl = p.shape.control(p.mem)
	n := p.shape.frames()
	// A socket needs a receive or a transmit ring, even an unused one.
	if p.rings, err = newSocket(map[int]int{fillRing.option: n, compRing.option: n, rxRing.option: 2}); err != nil {
		return err
	}
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&p.mem[0]))), Len: uint64(p.shape.umemBytes()), Size: uint32(p.shape.Chunk)}
	if err := setsockopt(p.rings, unix.SOL_XDP, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg)); err != nil {
		return fmt.Errorf("register memory of %d bytes: %w", size, err)
	}
	if p.fill, err = mapRing(p.rings, fillRing, n); err != nil {
		return err
	}
	const flags = unix.XDP_COPY | unix.XDP_USE_NEED_WAKEUP
	p.shape.Multi = true
	err = bind(p.rings, p.opt.Index, p.opt.Queue, flags|unix.XDP_USE_SG, 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // before Linux 6.6
		p.shape.Multi = false
		err = bind(p.rings, p.opt.Index, p.opt.Queue, flags, 0)
	}
	if err != nil {
		return fmt.Errorf("bind to queue %d: %w", p.opt.Queue, err)
	}
	return nil
}

// Errors of Join.
var (
	ErrFull      = errors.New("all seats of the interface are taken")
	ErrForbidden = errors.New("not allowed")
)

// Join gives a seat for the address and port that the UDP socket is bound to: possession of
// the socket proves the right to receive packets sent there. The caller keeps owning the
// descriptor udp. The seat is taken until Leave.
func (p *Port) Join(udp int, allowed func(netip.AddrPort) error) (_ *Grant, err error) {
	addr, err := boundTo(udp)
	if err != nil {
		return nil, err
	}
	if err := allowed(addr); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	number := 0
	for number < len(p.seats) && p.seats[number] != nil {
		number++
	}
	if number == len(p.seats) {
		return nil, ErrFull
	}
	t := &tenant{key: key(addr), socket: -1, udp: -1}
	g := &Grant{Shape: p.shape, Number: number, Socket: -1, Rings: -1, Memory: -1}
	defer func() {
		if err != nil {
			g.Close()
			p.evict(number, t)
		}
	}()
	if t.udp, err = dup(udp); err != nil {
		return nil, err
	}
	if t.socket, err = newSocket(map[int]int{rxRing.option: p.shape.Ring, txRing.option: p.shape.Ring}); err != nil {
		return nil, err
	}
	if err := bind(t.socket, p.opt.Index, p.opt.Queue, unix.XDP_SHARED_UMEM, p.rings); err != nil {
		return nil, fmt.Errorf("bind to queue %d: %w", p.opt.Queue, err)
	}
	for _, d := range []struct {
		to   *int
		from int
	}{{&g.Socket, t.socket}, {&g.Rings, p.rings}, {&g.Memory, p.memFD}} {
		if *d.to, err = dup(d.from); err != nil {
			return nil, err
		}
	}
	if err := p.maps.seats.Put(uint32(number), uint32(t.socket)); err != nil {
		return nil, fmt.Errorf("put socket into BPF map: %w", err)
	}
	if err := p.maps.steer.Update(t.key, uint32(number), ebpf.UpdateNoExist); err != nil {
		return nil, fmt.Errorf("steer packets to %v: %w", addr, err)
	}
	p.seats[number] = t
	p.taken++
	p.supply()
	return g, nil
}

// supply gives the kernel the frames of one more seat, if more seats are taken than ever before.
// Frames are used in turn: fewer stay in the caches. If the lock is not free, the next Join
// supplies them.
func (p *Port) supply() {
	most := p.taken * p.shape.Ring
	if p.given >= most || !p.lockFill() {
		return
	}
	at := atomic.LoadUint32(p.fill.prod)
	for ; p.given < most; p.given++ {
		*p.fill.addr(at) = uint64(p.given * p.shape.Chunk)
		at++
	}
	atomic.StoreUint32(p.fill.prod, at)
	unlock(p.ctl.fill, owner)
}

// Leave frees a seat whose user has released everything, or is dead.
func (p *Port) Leave(number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.seats[number]
	p.seats[number] = nil
	p.taken--
	p.maps.steer.Delete(t.key)
	p.evict(number, t)
}

// evict takes a seat back. The caller has the lock.
func (p *Port) evict(number int, t *tenant) {
	p.maps.seats.Delete(uint32(number))
	// A user that died with a lock has left its ring consistent, but which frames of the
	// last packets it had returned is unknown: they are lost.
	holder := uint32(number + 1)
	unlock(p.ctl.comp, holder)
	if !unlock(p.ctl.fill, holder) && t.socket >= 0 && p.taken > 0 {
		// The kernel may still be about to write to the ring.
		unix.Syscall(unix.SYS_MEMBARRIER, 1, 0, 0) // MEMBARRIER_CMD_GLOBAL
		p.reclaim(t.socket)
	}
	for _, fd := range []int{t.socket, t.udp} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// reclaim returns the frames in the ring of a seat to the fill ring.
func (p *Port) reclaim(socket int) {
	rx, err := mapRing(socket, rxRing, p.shape.Ring)
	if err != nil {
		return
	}
	defer rx.close()
	if !p.lockFill() {
		return
	}
	from, end := atomic.LoadUint32(rx.cons), atomic.LoadUint32(rx.prod)
	if end-from <= rx.mask+1 {
		p.shape.give(p.fill, rx, from, end)
	}
	unlock(p.ctl.fill, owner)
}

// lockFill takes the lock of the fill ring. Others hold it for less than a microsecond; a seat
// that holds it longer is stopped or malicious, and lockFill returns false.
func (p *Port) lockFill() bool {
	for range 1000 {
		if tryLock(p.ctl.fill, owner) {
			return true
		}
		runtime.Gosched()
	}
	return false
}

// Idle reports whether no seat is taken.
func (p *Port) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken == 0
}

// Close detaches the program and releases the queue. Seats still taken receive nothing any
// more: their packets go to the network stack.
func (p *Port) Close() {
	if p.link != nil {
		p.link.Close()
	}
	if p.prog != nil {
		p.prog.Close()
	}
	if p.maps.steer != nil {
		p.maps.close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, t := range p.seats {
		if t != nil {
			p.seats[i] = nil
			unix.Close(t.socket)
			unix.Close(t.udp)
		}
	}
	p.fill.close()
	if p.mem != nil {
		unix.Munmap(p.mem)
	}
	for _, fd := range []int{p.rings, p.memFD} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func dup(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return n, nil
}

// boundTo returns what a UDP socket is bound to: an address, not any.
func boundTo(udp int) (netip.AddrPort, error) {
	kind, err := unix.GetsockoptInt(udp, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || kind != unix.IPPROTO_UDP {
		return netip.AddrPort{}, fmt.Errorf("%w: the descriptor is not a UDP socket", ErrForbidden)
	}
	sa, err := unix.Getsockname(udp)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address of the UDP socket: %w", err)
	}
	var a netip.AddrPort
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		a = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		a = netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	if !a.IsValid() || a.Addr().IsUnspecified() || a.Addr().Is4In6() || a.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%w: the UDP socket is bound to %v, not to one address and port", ErrForbidden, a)
	}
	return a, nil
}
