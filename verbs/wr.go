package verbs

// Opcode is the operation of a send work request (enum ibv_wr_opcode, same numbers).
type Opcode uint32

// The operations of an RC QP.
const (
	OpRDMAWrite         Opcode = 0 // write SGList to the peer's RemoteAddr
	OpRDMAWriteWithImm  Opcode = 1 // the same, and consume one of the peer's receives, which gets Imm
	OpSend              Opcode = 2 // send SGList to the peer's next posted receive
	OpSendWithImm       Opcode = 3 // the same, with Imm
	OpRDMARead          Opcode = 4 // read the peer's RemoteAddr into SGList
	OpAtomicCmpAndSwp   Opcode = 5 // if the 8 bytes at RemoteAddr equal CompareAdd, set them to Swap
	OpAtomicFetchAndAdd Opcode = 6 // add CompareAdd to the 8 bytes at RemoteAddr
)

var opcodeNames = [...]string{"RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD"}

// String returns the libibverbs name without its prefix.
func (o Opcode) String() string { return enumName(opcodeNames[:], int(o), "Opcode") }

// SendFlags modify a send work request (enum ibv_send_flags, same numbers).
type SendFlags uint32

// Flags of a send work request.
const (
	// SendFence: start only after all earlier RDMA_READ and atomic operations of
	// this QP are complete.
	SendFence SendFlags = 1 << 0
	// SendSignaled: generate a WC on success. Failures always generate one.
	SendSignaled SendFlags = 1 << 1
	// SendSolicited: the receive completion at the peer is solicited (see [CQ.ReqNotify]).
	SendSolicited SendFlags = 1 << 2
	// SendInline: PostSend copies the payload, at most [QPCap].MaxInlineData bytes;
	// its memory may be reused when PostSend returns. Not for RDMA_READ and atomics.
	SendInline SendFlags = 1 << 3
)

// SGE is a scatter/gather element (struct ibv_sge): Length bytes at Addr in the region
// of LKey. [MR.SGE] returns one.
type SGE struct {
	Addr   uint64 // virtual address in this process
	Length uint32 // bytes, at most 2^31
	LKey   uint32
}

// maxSGELength is the limit of an element in bytes: no message is longer (InfiniBand
// Architecture, volume 1, 9.4).
const maxSGELength = 1 << 31

// For invalid arguments [MR.SGE] returns an element with one of these lengths, which
// every post refuses, and the offending value in place of the address.
const (
	badLength = ^uint32(iota)
	badOffset
	badEnd
)

// refused returns the first element that must not be posted; nil without one.
func refused(list []SGE) *SGE {
	for i := range list {
		if list[i].Length > maxSGELength {
			return &list[i]
		}
	}
	return nil
}

// refusal returns the error of a post whose work request i has the refused element e.
// The provider accepted n of the i requests before it, and returned err for them.
func (e *SGE) refusal(c *Context, op string, i, n int, err error) error {
	if err != nil || n < i {
		return err
	}
	switch e.Length {
	case badLength:
		return c.errorf(op, ErrInvalid, "SGE of %d bytes, limit is %d", int64(e.Addr), uint32(maxSGELength))
	case badOffset:
		return c.errorf(op, ErrRange, "SGE at offset %d is outside the region of lkey %#x", int64(e.Addr), e.LKey)
	case badEnd:
		return c.errorf(op, ErrRange, "SGE ends at offset %d, outside the region of lkey %#x", e.Addr, e.LKey)
	}
	return c.errorf(op, ErrInvalid, "SGE of %d bytes, limit is %d", e.Length, uint32(maxSGELength))
}

// SendWR is a send work request (struct ibv_send_wr). When PostSend returns, the caller
// may reuse it and its slices. The memory that the SGEs name belongs to the operation
// until it is complete (with SendInline: until PostSend returns).
type SendWR struct {
	WRID   uint64 // returned in the WC
	SGList []SGE
	// Inline, if not nil, is the payload, in place of SGList. It needs SendInline,
	// and its memory need not be registered. (libibverbs accepts an SGE with any
	// address there; a Go slice is the safe form of that.)
	Inline     []byte
	Opcode     Opcode
	Flags      SendFlags
	Imm        uint32 // immediate data, for the _WITH_IMM operations
	RKey       uint32 // key of the peer's region, for RDMA and atomics
	RemoteAddr uint64 // address in the peer's process, for RDMA and atomics
	CompareAdd uint64 // atomics: value to compare with, or to add
	Swap       uint64 // ATOMIC_CMP_AND_SWP: new value
}

// RecvWR is a receive work request (struct ibv_recv_wr). When PostRecv returns, the
// caller may reuse it and its slice. The memory that the SGEs name belongs to the
// operation until its WC.
type RecvWR struct {
	WRID   uint64
	SGList []SGE
}

// WCOpcode is the operation of a completion (enum ibv_wc_opcode, same numbers).
type WCOpcode uint32

// Operations of completions.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCRecv            WCOpcode = 1 << 7
	WCRecvRDMAWithImm WCOpcode = 1<<7 + 1
)

// String returns the libibverbs name without its prefix.
func (o WCOpcode) String() string {
	switch o {
	case WCRecv:
		return "RECV"
	case WCRecvRDMAWithImm:
		return "RECV_RDMA_WITH_IMM"
	}
	return enumName([]string{"SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD"}, int(o), "WCOpcode")
}

// WCOpcode returns the opcode of the sender's completion of o.
func (o Opcode) WCOpcode() WCOpcode {
	switch o {
	case OpRDMAWrite, OpRDMAWriteWithImm:
		return WCRDMAWrite
	case OpRDMARead:
		return WCRDMARead
	case OpAtomicCmpAndSwp:
		return WCCompSwap
	case OpAtomicFetchAndAdd:
		return WCFetchAdd
	}
	return WCSend
}

// WCFlags are the flags of a completion (enum ibv_wc_flags, same numbers).
type WCFlags uint32

// WCWithImm: WC.Imm is valid.
const WCWithImm WCFlags = 1 << 1

// WC is a work completion (struct ibv_wc, the fields of RC). If Status is not
// WCSuccess, only WRID, Status, VendorErr, QPNum and, in this library, Opcode are
// valid.
type WC struct {
	WRID      uint64
	Status    WCStatus
	Opcode    WCOpcode
	VendorErr uint32 // provider-specific detail of Status; see the provider's documentation
	ByteLen   uint32 // bytes moved, for receives, RDMA_READ and atomics
	Imm       uint32 // valid with WCWithImm
	QPNum     uint32 // local QP
	SrcQP     uint32 // the peer's QP
	Flags     WCFlags
}

// Err returns nil for WCSuccess, else a [*WCError] that names the failed operation and
// its QP, and unwraps to the status.
func (w *WC) Err() error {
	if w.Status == WCSuccess {
		return nil
	}
	return &WCError{WC: *w}
}
