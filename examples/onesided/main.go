// Onesided has each rank write into the memory of the next one by RDMA, through the verbs
// themselves. Look at: what channel does for its users: exchanging endpoints, addresses and
// keys; posting work requests; waiting for completions.
package main

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/sluice-hpc/sluice/channel"
	"github.com/sluice-hpc/sluice/verbs"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

const provider = "tcp" // or "ibv", or, on one host, "shm"

func main() {
	channel.Main(func(ctx context.Context, n *channel.Node) error {
		device := channel.Must(verbs.Find(provider))
		c := channel.Must(device.Open(verbs.Config{Secret: n.Key("onesided")}))
		defer c.Close() // and all that is made of it
		pd := channel.Must(c.AllocPD())
		cq := channel.Must(c.CreateCQ(16, nil))
		memory := channel.Must(pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
		attr := verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}
		toNext, fromLast := channel.Must(pd.CreateQP(attr)), channel.Must(pd.CreateQP(attr))

		// What the others have to know: both endpoints, and where the memory is.
		var mine []byte
		for _, qp := range []*verbs.QP{toNext, fromLast} {
			endpoint := channel.Must(qp.Endpoint())
			mine = append(mine, channel.Must(endpoint.MarshalBinary())...)
		}
		half := len(mine) / 2
		mine = binary.BigEndian.AppendUint64(mine, memory.Addr())
		mine = binary.BigEndian.AppendUint32(mine, memory.RKey())
		all := channel.Must(n.Exchange(ctx, mine))
		next, last := all[(n.Rank()+1)%n.Size()], all[(n.Rank()+n.Size()-1)%n.Size()]
		if err := toNext.Connect(channel.Must(verbs.ParseEndpoint(next[half:2*half])), verbs.ConnectAttr{}); err != nil {
			return err
		}
		if err := fromLast.Connect(channel.Must(verbs.ParseEndpoint(last[:half])), verbs.ConnectAttr{}); err != nil {
			return err
		}

		// A write with immediate data, which completes a receive at the other side.
		channel.Must(fromLast.PostRecv([]verbs.RecvWR{{WRID: 1}}))
		channel.Must(n.Exchange(ctx, nil)) // all have posted their receive
		text := fmt.Appendf(nil, "from rank %d", n.Rank())
		copy(memory.Bytes(), text)
		channel.Must(toNext.PostSend([]verbs.SendWR{{
			WRID: 2, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(len(text)),
			SGList:     []verbs.SGE{memory.SGE(0, len(text))},
			RemoteAddr: binary.BigEndian.Uint64(next[2*half:]) + 2048, RKey: binary.BigEndian.Uint32(next[2*half+8:]),
		}}))
		for range 2 { // the write here, and the one of the rank before
			var wc [1]verbs.WC
			channel.Must(cq.Wait(ctx, wc[:]))
			if err := wc[0].Err(); err != nil {
				return err
			}
			if wc[0].WRID == 1 {
				fmt.Printf("rank %d has %q\n", n.Rank(), memory.Bytes()[2048:][:wc[0].Imm])
			}
		}
		channel.Must(n.Exchange(ctx, nil)) // none closes while another writes
		return nil
	})
}
