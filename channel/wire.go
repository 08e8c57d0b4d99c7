package channel

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/sluice-hpc/sluice/internal/layout"
	"github.com/sluice-hpc/sluice/verbs"
)

// The control connection between two ranks carries setup data: how to connect them, and what they
// declare. Each message is a kind and the length of its body, then the body; all integers are
// big-endian.

const (
	wireProtocol = "sluice-channel"
	wireMajor    = 11
	wireMinor    = 0

	maxBody   = 16 << 20 // a layout of 460,000 blocks without regularity
	headerLen = 8
)

type kind uint8

const (
	kindPropose   kind = 1 + iota // lower rank: an endpoint to connect to
	kindAnswer                    // higher rank: its endpoint, or why not
	kindProbed                    // each: whether the probe has arrived
	kindUse                       // lower rank: whether the link is used
	kindNode                      // each: where its bell is
	kindStream                    // sender: where the ring of a stream is
	kindLayout                    // owner: the layout of a handle
	kindDrop                      // owner: the handle is closed
	kindBye                       // the node closes; nothing follows
	kindPipe                      // sender: where the pipe of a stream is
	kindFault                     // each: a group has failed
	kindCall                      // each: the collective in which it has been waiting for long
	kindConnected                 // lower rank: whether its queue pair has connected too
	kindEnd                       // each: the number of a stream that it has finished with
	kindPing                      // each: asks for a pong of the same number
	kindPong                      // each: all that was queued before the ping of this number came has been sent
	kindRest                      // each: of a stream that has no handle, see rest.go
	kinds
)

func (k kind) String() string {
	if k == 0 || k >= kinds {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return [...]string{"", "propose", "answer", "probed", "use", "node", "stream", "layout", "drop", "bye", "pipe", "fault", "called", "connected", "end", "ping", "pong", "rest"}[k]
}

// region is memory of the sender of a message, as the peer accesses it.
type region struct {
	rkey   uint32
	addr   uint64
	length uint64
}

func (r region) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.rkey)
	b = binary.BigEndian.AppendUint64(b, r.addr)
	return binary.BigEndian.AppendUint64(b, r.length)
}

// frame appends a message to b.
func frame(b []byte, k kind, body []byte) []byte {
	b = append(b, byte(k), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

// readFrame reads one message. A body is allocated as it comes, so that a length
// alone costs nothing.
func readFrame(r io.Reader) (kind, []byte, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	k, n := kind(h[0]), binary.BigEndian.Uint32(h[4:])
	if k == 0 || k >= kinds || h[1] != 0 || h[2] != 0 || h[3] != 0 || n > maxBody {
		return 0, nil, fmt.Errorf("%w: %v with %d bytes", ErrProtocol, k, n)
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err == nil && len(body) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	return k, body, err
}

// reader parses a body; once it is too short, all further values are zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || len(r.b) < n {
		r.bad = true
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) region() region { return region{r.u32(), r.u64(), r.u64()} }

// end returns an error unless the body was parsed exactly to its end.
func (r *reader) end(k kind) error {
	if r.bad || len(r.b) > 0 {
		return fmt.Errorf("%w: %v has a wrong length", ErrProtocol, k)
	}
	return nil
}

// offer is the body of kindPropose and kindAnswer: an endpoint, or in an answer
// the reason why there is none.
type offer struct {
	attempt  uint8
	port     uint8 // the proposer's number for where its endpoint is, the same in all of its attempts
	far      bool  // of a proposal: also to a port of another subnet
	endpoint verbs.Endpoint
	refusal  string
	final    bool // of a refusal: the provider as such is refused
}

const maxRefusal = 1 << 10

// Flags of an offer.
const (
	offerEndpoint = 1 << iota // otherwise a refusal
	offerMore                 // far, or final
)

func (o *offer) append(b []byte) ([]byte, error) {
	flags := byte(0)
	if o.far || o.final {
		flags = offerMore
	}
	if o.refusal != "" {
		return append(append(b, o.attempt, o.port, flags), o.refusal[:min(len(o.refusal), maxRefusal)]...), nil
	}
	return o.endpoint.AppendBinary(append(b, o.attempt, o.port, flags|offerEndpoint))
}

func parseOffer(k kind, b []byte) (offer, error) {
	r := reader{b: b}
	o := offer{attempt: r.u8(), port: r.u8()}
	flags := r.u8()
	more := flags&offerMore != 0
	switch flags &^ offerMore {
	case offerEndpoint:
		if o.far = more; r.bad || more && k != kindPropose {
			return o, fmt.Errorf("%w: %v of %d bytes", ErrProtocol, k, len(b))
		}
		var err error
		if o.endpoint, err = verbs.ParseEndpoint(r.b); err != nil {
			return o, fmt.Errorf("%w: %v: %w", ErrProtocol, k, err)
		}
	case 0:
		if o.final = more; r.bad || k != kindAnswer || len(r.b) == 0 || len(r.b) > maxRefusal {
			return o, fmt.Errorf("%w: %v with a refusal of %d bytes", ErrProtocol, k, len(r.b))
		}
		o.refusal = string(r.b)
	default:
		return o, fmt.Errorf("%w: %v with flags %#x", ErrProtocol, k, flags)
	}
	return o, nil
}

// parseVerdict reads the body of kindConnected, kindProbed and kindUse: one byte for the attempt, one
// for yes or no.
func parseVerdict(k kind, b []byte) (attempt uint8, ok bool, err error) {
	if len(b) != 2 || b[1] > 1 {
		return 0, false, fmt.Errorf("%w: %v of %d bytes", ErrProtocol, k, len(b))
	}
	return b[0], b[1] == 1, nil
}

func verdictBody(attempt uint8, ok bool) []byte {
	b := []byte{attempt, 0}
	if ok {
		b[1] = 1
	}
	return b
}

// nodeInfo is the body of kindNode.
type nodeInfo struct {
	fenced bool
	bell   region
}

func (n *nodeInfo) append(b []byte) []byte {
	f := byte(0)
	if n.fenced {
		f = 1
	}
	return n.bell.append(append(b, f))
}

func parseNode(b []byte) (nodeInfo, error) {
	r := reader{b: b}
	n := nodeInfo{fenced: r.u8() == 1, bell: r.region()}
	return n, r.end(kindNode)
}

// streamInfo is the body of kindStream and kindPipe.
type streamInfo struct {
	number uint32
	region
}

func (s *streamInfo) append(b []byte) []byte {
	return s.region.append(binary.BigEndian.AppendUint32(b, s.number))
}

func parseStream(k kind, b []byte) (streamInfo, error) {
	r := reader{b: b}
	s := streamInfo{r.u32(), r.region()}
	return s, r.end(k)
}

// layoutInfo is the body of kindLayout: the layout of a handle over regions of
// its owner.
type layoutInfo struct {
	handle, version uint32
	regions         []region
	parts           []remotePart

	total, blocks int // bytes and blocks of a message; not sent
}

// remotePart is a part of a layout over region number region.
type remotePart struct {
	region                    uint32
	off, block, count, stride int
}

// over is the part over the memory of its region.
func (p *remotePart) over(region []byte) layout.Part {
	return layout.Part{Base: region, Off: p.off, Block: p.block, Count: p.count, Stride: p.stride}
}

const (
	regionLen = 4 + 8 + 8
	partLen   = 4 + 4*8
)

// layoutLen is the length of the body of kindLayout.
func layoutLen(regions, parts int) int { return 16 + regions*regionLen + parts*partLen }

// layoutVersionEnd is where the version ends in what append appends.
const layoutVersionEnd = 8

func (l *layoutInfo) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, l.handle)
	b = binary.BigEndian.AppendUint32(b, l.version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.regions)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.parts)))
	for _, r := range l.regions {
		b = r.append(b)
	}
	for _, p := range l.parts {
		b = binary.BigEndian.AppendUint32(b, p.region)
		for _, v := range [...]int{p.off, p.block, p.count, p.stride} {
			b = binary.BigEndian.AppendUint64(b, uint64(v))
		}
	}
	return b
}

// parseLayout checks that every part lies in its region, which the reader then
// maps as a whole.
func parseLayout(b []byte) (layoutInfo, error) {
	r := reader{b: b}
	l := layoutInfo{handle: r.u32(), version: r.u32()}
	regions, parts := int(r.u32()), int(r.u32())
	if r.bad || regions > len(r.b)/regionLen || len(r.b) != regions*regionLen+parts*partLen {
		return l, fmt.Errorf("%w: layout with %d regions and %d parts in %d bytes", ErrProtocol, regions, parts, len(b))
	}
	for range regions {
		l.regions = append(l.regions, r.region())
	}
	for range parts {
		p := remotePart{r.u32(), int(r.u64()), int(r.u64()), int(r.u64()), int(r.u64())}
		if int(p.region) >= regions {
			return l, fmt.Errorf("%w: region %d of %d", ErrProtocol, p.region, regions)
		}
		size := l.regions[p.region].length
		q := p.over(nil)
		if size > math.MaxInt64 || p.block <= 0 || p.count <= 0 || q.Check(int(size)) != nil || p.block*p.count > math.MaxInt-l.total || p.count > math.MaxInt-l.blocks {
			return l, fmt.Errorf("%w: %d blocks of %d bytes, stride %d, at %d of a region of %d bytes", ErrProtocol, p.count, p.block, p.stride, p.off, size)
		}
		l.total += p.block * p.count
		l.blocks += p.count
		l.parts = append(l.parts, p)
	}
	return l, r.end(kindLayout)
}
