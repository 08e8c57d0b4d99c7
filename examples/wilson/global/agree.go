package global

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// RemoteError is an error at another node.
type RemoteError struct {
	Node int
	Text string // the error there, cut after some hundred bytes
}

func (e *RemoteError) Error() string { return fmt.Sprintf("node %d: %s", e.Node, e.Text) }

// Nodes exchange of an error: whether there is one (1 byte), its node (4), its place (8), the
// length of its text (2), and the text.
const (
	agreeNode   = 1
	agreePlace  = 5
	agreeLength = 13
	agreeText   = 15
	agreeBytes  = agreeText + 497
)

// Agree returns the first error of all nodes: the one with the smallest place, a number that only
// defines an order, and of equal places that of the lowest node. It is nil if no node has an
// error; another node's error is a [*RemoteError]. Collective: all nodes go on, or none.
func (s *Sums) Agree(err error, place uint64) error {
	var b [agreeBytes]byte
	if err != nil {
		b[0] = 1
		binary.LittleEndian.PutUint32(b[agreeNode:], uint32(s.comm.NodeNumber()))
		binary.LittleEndian.PutUint64(b[agreePlace:], place)
		binary.LittleEndian.PutUint16(b[agreeLength:], uint16(copy(b[agreeText:], err.Error())))
	}
	if e := s.comm.BinaryReduction(b[:], firstError); e != nil {
		return errors.Join(err, e)
	}
	if b[0] == 0 {
		return nil
	}
	node := int(binary.LittleEndian.Uint32(b[agreeNode:]))
	if node == s.comm.NodeNumber() {
		return err
	}
	n := min(int(binary.LittleEndian.Uint16(b[agreeLength:])), agreeBytes-agreeText)
	return &RemoteError{node, string(b[agreeText:][:n])}
}

// firstError keeps the first of two errors. The reduction is in the order of the nodes.
func firstError(inout, in []byte) {
	place := func(b []byte) uint64 { return binary.LittleEndian.Uint64(b[agreePlace:]) }
	if in[0] != 0 && (inout[0] == 0 || place(in) < place(inout)) {
		copy(inout, in)
	}
}

// Words sets x to the sum of the x of all nodes, modulo 2^64. Collective.
func (s *Sums) Words(x *uint64) error { return s.comm.SumUint64(x) }

// Primary reports whether this is node 0, which prints and makes files.
func (s *Sums) Primary() bool { return s.comm.IsPrimaryNode() }
