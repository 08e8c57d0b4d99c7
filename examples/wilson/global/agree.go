package global

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// RemoteError is what is wrong at another node.
type RemoteError struct {
	Node int
	Text string // the error there, cut after some hundred bytes
}

func (e *RemoteError) Error() string { return fmt.Sprintf("node %d: %s", e.Node, e.Text) }

// What nodes tell each other of an error: whether there is one (1 byte), whose (4), its
// place (8), the length of its text (2), and the text.
const (
	agreeNode   = 1
	agreePlace  = 5
	agreeLength = 13
	agreeText   = 15
	agreeBytes  = agreeText + 497
)

// Agree returns the error of that node whose error comes first: the one of the least
// place, a number that only means an order, and of the lowest node where places are the
// same. It is nil if no node has one; another node's is a [*RemoteError]. Collective:
// all nodes go on, or none.
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

// firstError keeps that of two errors which comes first. What is reduced comes in the
// order of the nodes.
func firstError(inout, in []byte) {
	place := func(b []byte) uint64 { return binary.LittleEndian.Uint64(b[agreePlace:]) }
	if in[0] != 0 && (inout[0] == 0 || place(in) < place(inout)) {
		copy(inout, in)
	}
}

// Words sets x to the sum of the x of all nodes, modulo 2^64. Collective.
func (s *Sums) Words(x *uint64) error { return s.comm.SumUint64(x) }

// Primary says whether this is node 0, which prints and makes files.
func (s *Sums) Primary() bool { return s.comm.IsPrimaryNode() }
