package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/sluice-hpc/sluice/verbs"
)

// identity names one end of a connection: the address that its context listens on, and its
// QP. The proof of the job's secret binds it to the connection.
type identity struct {
	gid  verbs.GID
	port uint16
	qpn  uint32 // 0: any QP of the context
}

const identitySize = 22

// bytes returns the identity as the proof covers it. It also orders two ends: the smaller
// one dials.
func (id identity) bytes() []byte {
	b := make([]byte, 0, identitySize)
	b = append(b, id.gid[:]...)
	b = binary.BigEndian.AppendUint16(b, id.port)
	return binary.BigEndian.AppendUint32(b, id.qpn)
}

func (id identity) compare(other identity) int { return bytes.Compare(id.bytes(), other.bytes()) }

// any returns the identity without the QP: an acceptor does not yet know which of its QPs
// the dialer wants.
func (id identity) any() identity {
	id.qpn = 0
	return id
}

func (id identity) addrPort() netip.AddrPort { return netip.AddrPortFrom(id.gid.Addr(), id.port) }

func (id identity) String() string { return fmt.Sprintf("%v#%06x", id.addrPort(), id.qpn) }
