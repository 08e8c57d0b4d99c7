package verbs

import (
	"io"
	"strings"
)

// AccessFlags say which accesses to a region, or through a QP, are allowed (enum
// ibv_access_flags, same numbers).
type AccessFlags uint32

// Access flags. Local reads are always allowed.
const (
	AccessLocalWrite      AccessFlags = 1 << 0
	AccessRemoteWrite     AccessFlags = 1 << 1
	AccessRemoteRead      AccessFlags = 1 << 2
	AccessRemoteAtomic    AccessFlags = 1 << 3
	AccessOnDemand        AccessFlags = 1 << 6
	AccessRelaxedOrdering AccessFlags = 1 << 20

	// AccessAll allows all accesses of the device and the peer.
	AccessAll = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic

	accessMask = AccessAll | AccessOnDemand | AccessRelaxedOrdering
)

// String lists the flags by their libibverbs names without prefix.
func (a AccessFlags) String() string {
	var l []string
	for _, f := range []struct {
		bit  AccessFlags
		name string
	}{
		{AccessLocalWrite, "LOCAL_WRITE"}, {AccessRemoteWrite, "REMOTE_WRITE"}, {AccessRemoteRead, "REMOTE_READ"},
		{AccessRemoteAtomic, "REMOTE_ATOMIC"}, {AccessOnDemand, "ON_DEMAND"}, {AccessRelaxedOrdering, "RELAXED_ORDERING"},
	} {
		if a&f.bit != 0 {
			l = append(l, f.name)
		}
	}
	if l == nil {
		return "LOCAL_READ"
	}
	return strings.Join(l, "|")
}

// MR is a registered memory region (struct ibv_mr).
type MR struct {
	object
	prov   ProviderMR
	pd     *PD
	access AccessFlags
	addr   uint64
	length uint64
	lkey   uint32
	rkey   uint32
	buf    []byte
}

// Addr returns the address of the first byte, for [SGE] and [SendWR].RemoteAddr.
func (m *MR) Addr() uint64 { return m.addr }

// Len returns the length in bytes.
func (m *MR) Len() int { return int(m.length) }

// LKey returns the key for local access, for SGEs.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey returns the key that a peer needs, with the address, to access the region.
func (m *MR) RKey() uint32 { return m.rkey }

// Access returns the flags that the region was registered with.
func (m *MR) Access() AccessFlags { return m.access }

// Bytes returns the region's memory, nil after Close. The device or the peer may write
// it while an operation on it is outstanding.
func (m *MR) Bytes() []byte {
	if m.closed.Load() {
		return nil
	}
	return m.buf
}

// SGE returns the element for length bytes at offset. If that is more than 2^31 bytes,
// or not inside the region, every post of the element fails with [ErrInvalid] or
// [ErrRange] and the offending value.
func (m *MR) SGE(offset, length int) SGE {
	if uint64(offset) <= m.length && uint64(length) <= min(m.length-uint64(offset), maxSGELength) {
		return SGE{Addr: m.addr + uint64(offset), Length: uint32(length), LKey: m.lkey}
	}
	return m.impossible(offset, length)
}

// impossible returns an element that every post refuses; see [SGE.refusal].
func (m *MR) impossible(offset, length int) SGE {
	switch {
	case uint64(length) > maxSGELength:
		return SGE{Addr: uint64(length), Length: badLength, LKey: m.lkey}
	case uint64(offset) > m.length:
		return SGE{Addr: uint64(offset), Length: badOffset, LKey: m.lkey}
	}
	return SGE{Addr: uint64(offset) + uint64(length), Length: badEnd, LKey: m.lkey}
}

// Close deregisters the region (ibv_dereg_mr) and frees memory from [PD.AllocMR]. Its
// keys become invalid at once: later accesses fail with access errors. Close waits for
// an access in flight, at most [Config].PeerTimeout; after that the error wraps
// [ErrBusy], and the memory is neither freed nor reused. Until Close returns, closing
// the region's PD fails with ErrBusy; other calls on the context do not wait.
func (m *MR) Close() error { return end("close MR", m) }

func (m *MR) rank() int           { return rankMR }
func (m *MR) provider() io.Closer { return m.prov }
func (m *MR) letGo()              { m.pd.users-- }
