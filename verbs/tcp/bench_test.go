package tcp

import (
	"fmt"
	"testing"

	"github.com/sluice-hpc/sluice/verbs"
)

// BenchmarkPingPong is half a round trip between two processes that both poll.
func BenchmarkPingPong(b *testing.B) {
	for name, portable := range drivers {
		for _, size := range []int{8, 1 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				p := startPeer(b, "echo", verbs.Config{Secret: secret, Portable: portable}, loop(b), loop(b), "")
				recv := make([]verbs.RecvWR, 64)
				for i := range recv {
					recv[i].SGList = []verbs.SGE{p.mr.SGE(cornerSize/2, size)}
				}
				send := []verbs.SendWR{{Opcode: verbs.OpSend, SGList: []verbs.SGE{p.mr.SGE(0, size)}}}
				wcs := make([]verbs.WC, 4)
				post := func(n int, err error) {
					if n == 0 || err != nil {
						b.Fatal(n, err)
					}
				}
				post(p.qp.PostRecv(recv))
				used := 0
				round := func() {
					post(p.qp.PostSend(send))
					for {
						n, err := p.cq.Poll(wcs)
						if err != nil {
							b.Fatal(err)
						}
						if n > 0 {
							if err := wcs[0].Err(); err != nil {
								b.Fatal(err)
							}
							break
						}
					}
					if used++; used == 32 {
						used = 0
						post(p.qp.PostRecv(recv[:32]))
					}
				}
				round()
				b.ReportAllocs()
				for b.Loop() {
					round()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/half")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkStream sends messages to another process that receives them, with several in flight.
func BenchmarkStream(b *testing.B) {
	const window = 8
	for name, portable := range drivers {
		for _, size := range []int{64, 64 << 10, 1 << 20, 4 << 20} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				p := startPeer(b, "sink", verbs.Config{Secret: secret, Portable: portable}, loop(b), loop(b), "")
				send := []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.mr.SGE(0, size)}}}
				wcs := make([]verbs.WC, window)
				flying := 0
				reap := func() {
					n, err := p.cq.Poll(wcs)
					if err != nil {
						b.Fatal(err)
					}
					for i := range wcs[:n] {
						if err := wcs[i].Err(); err != nil {
							b.Fatal(err)
						}
					}
					flying -= n
				}
				b.SetBytes(int64(size))
				for b.Loop() {
					if n, err := p.qp.PostSend(send); n != 1 || err != nil {
						b.Fatal(n, err)
					}
					for flying++; flying == window; {
						reap()
					}
				}
				for flying > 0 {
					reap()
				}
			})
		}
	}
}
