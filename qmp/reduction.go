package qmp

import "github.com/sluice-hpc/sluice/channel"

// BinaryReduction combines buf of all nodes with a function and stores the result in buf of all
// nodes (QMP_binary_reduction). f sets inout to inout op in. Node 0 calls it, one call after the
// other, in the order of the nodes:
//
//	((buf0 op buf1) op buf2) op buf3 ...
//
// so f need be neither commutative nor associative, and the result has the same bits at all nodes.
// f must not keep the slices or call a global operation of c. Node 0 needs memory of len(buf) times
// the number of nodes. See [Comm.SumInt].
func (c *Comm) BinaryReduction(buf []byte, f func(inout, in []byte)) error {
	const op = "binary reduction"
	if f == nil {
		return fail(op, StatusInvalidArg, errNil)
	}
	if err := c.begin(op); err != nil {
		return err
	}
	defer c.end()
	defer c.m.watched(op)()
	var all []byte
	if c.me == 0 {
		all = make([]byte, len(buf)*len(c.nodes))
	}
	if err := c.group.Run(background, channel.Gather(all, buf, 0)); err != nil {
		return failed(op, err)
	}
	if c.me == 0 {
		for i := 1; i < len(c.nodes); i++ {
			f(buf, all[i*len(buf):(i+1)*len(buf):(i+1)*len(buf)])
		}
	}
	return failed(op, c.group.Run(background, channel.Broadcast(buf, 0)))
}
