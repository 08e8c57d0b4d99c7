package proof

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// The hello is the same in both directions and in every version of the
// protocols that follow it. Integers are big-endian; names are padded with
// zeros.
//
//	 0  6  "SLUICE"
//	 6  2  version of this exchange: 1
//	 8  1  role: 1 dialer, 2 acceptor
//	 9  1  byte order of the sender: 1 little, 2 big
//	10  1  1 if insecure, else 0
//	11  1  length of the protocol's name
//	12  4  page size of the sender in bytes
//	16  2  major version of the protocol
//	18  2  minor version of the protocol
//	20  1  length of the job id
//	21  1  length of the identity
//	22  2  zero
//	24  8  feature mask
//	32 32  nonce
//	64 32  protocol
//	96 64  job id
//	160 64 identity
//
// It is followed, once in each direction, by a tag of 32 bytes.
const (
	magic       = "SLUICE"
	wireVersion = 1
	prefixSize  = 8
	nonceSize   = 32
	maxProtocol = 32
	maxJob      = 64
	maxIdentity = 64
	helloSize   = 224
	tagSize     = sha256.Size
)

type role uint8

const (
	roleDialer   role = 1
	roleAcceptor role = 2
)

func (r role) String() string {
	switch r {
	case roleDialer:
		return "dialer"
	case roleAcceptor:
		return "acceptor"
	}
	return fmt.Sprintf("role %d", uint8(r))
}

type byteOrder uint8

const (
	littleEndian byteOrder = 1
	bigEndian    byteOrder = 2
)

func (o byteOrder) String() string {
	switch o {
	case littleEndian:
		return "little-endian"
	case bigEndian:
		return "big-endian"
	}
	return fmt.Sprintf("byte order %d", uint8(o))
}

func nativeOrder() byteOrder {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		return littleEndian
	}
	return bigEndian
}

type hello struct {
	role         role
	order        byteOrder
	insecure     bool
	pageSize     uint32 // bytes
	major, minor uint16
	features     uint64
	nonce        [nonceSize]byte
	protocol     string
	job          string
	identity     []byte
}

// Append appends the wire form, helloSize bytes, to b. The names must be
// within their limits.
func (h *hello) Append(b []byte) []byte {
	b = append(b, magic...)
	b = binary.BigEndian.AppendUint16(b, wireVersion)
	b = append(b, byte(h.role), byte(h.order), flag(h.insecure), byte(len(h.protocol)))
	b = binary.BigEndian.AppendUint32(b, h.pageSize)
	b = binary.BigEndian.AppendUint16(b, h.major)
	b = binary.BigEndian.AppendUint16(b, h.minor)
	b = append(b, byte(len(h.job)), byte(len(h.identity)), 0, 0)
	b = binary.BigEndian.AppendUint64(b, h.features)
	b = append(b, h.nonce[:]...)
	b = appendPadded(b, h.protocol, maxProtocol)
	b = appendPadded(b, h.job, maxJob)
	return appendPadded(b, h.identity, maxIdentity)
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}

func appendPadded[T string | []byte](b []byte, name T, size int) []byte {
	b = append(b, name...)
	return append(b, make([]byte, size-len(name))...)
}

// parseHello reads a hello from the front of b and returns the number of bytes
// that it takes. It accepts exactly what Append can produce. The result does
// not refer to b.
func parseHello(b []byte) (h hello, n int, err error) {
	if len(b) < helloSize {
		return hello{}, 0, fmt.Errorf("%w: hello of %d bytes, expected %d", ErrGarbage, len(b), helloSize)
	}
	if err := checkPrefix(b); err != nil {
		return hello{}, 0, err
	}
	h = hello{
		role:     role(b[8]),
		order:    byteOrder(b[9]),
		insecure: b[10] == 1,
		pageSize: binary.BigEndian.Uint32(b[12:]),
		major:    binary.BigEndian.Uint16(b[16:]),
		minor:    binary.BigEndian.Uint16(b[18:]),
		features: binary.BigEndian.Uint64(b[24:]),
		nonce:    [nonceSize]byte(b[32:]),
	}
	protocol, ok1 := padded(b[64:96], b[11])
	job, ok2 := padded(b[96:160], b[20])
	identity, ok3 := padded(b[160:224], b[21])
	switch {
	case h.role != roleDialer && h.role != roleAcceptor:
		return hello{}, 0, fmt.Errorf("%w: %v in a hello", ErrGarbage, h.role)
	case h.order != littleEndian && h.order != bigEndian:
		return hello{}, 0, fmt.Errorf("%w: %v in a hello", ErrGarbage, h.order)
	case b[10] > 1 || b[22] != 0 || b[23] != 0:
		return hello{}, 0, fmt.Errorf("%w: unknown flags in a hello", ErrGarbage)
	case !ok1 || !ok2 || !ok3:
		return hello{}, 0, fmt.Errorf("%w: names in a hello do not fit their lengths", ErrGarbage)
	}
	h.protocol = string(protocol)
	h.job = string(job)
	h.identity = bytes.Clone(identity)
	return h, helloSize, nil
}

// checkPrefix checks the first prefixSize bytes of a hello.
func checkPrefix(b []byte) error {
	if string(b[:len(magic)]) != magic {
		return fmt.Errorf("%w: it sent %q first", ErrGarbage, b[:len(magic)])
	}
	if v := binary.BigEndian.Uint16(b[6:]); v != wireVersion {
		return &MismatchError{Err: ErrVersion, Ours: fmt.Sprintf("proof %d", wireVersion), Theirs: fmt.Sprintf("proof %d", v)}
	}
	return nil
}

// padded returns the first size bytes of a field if the rest of it is zero.
func padded(field []byte, size byte) ([]byte, bool) {
	if int(size) > len(field) {
		return nil, false
	}
	for _, c := range field[size:] {
		if c != 0 {
			return nil, false
		}
	}
	return field[:size], true
}
