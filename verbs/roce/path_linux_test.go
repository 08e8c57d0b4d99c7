package roce

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-hpc/sluice/verbs"
)

// The cost of messages between two hosts, by wire and mode of acknowledgement: half a round trip of 64
// bytes, and a stream of 64 KiB. CPU time is that of both ends, including the kernel's part and time
// spent spinning; packets are those with data, each sent by one end and received by the other.
//
//	go test -run '^$' -bench '^BenchmarkPath$' -cpu 2 ./verbs/roce
func BenchmarkPath(b *testing.B) {
	for _, provider := range []string{providerName, xdpName} {
		for _, ack := range []string{"lazy", "message"} {
			for _, size := range []int{64, lossySize} {
				b.Run(fmt.Sprintf("%s/ack=%s/%d", provider, ack, size), func(b *testing.B) {
					if provider == xdpName {
						needXDP(b)
					}
					b.Setenv(envAck, ack)
					two := hosts(b, 1500)
					ends := connect(b, 16*lossySize, func(i int) *verbs.Context { return two[i].open(b, provider+"_veth0", verbs.Config{}) })
					port, err := ends[0].ctx.QueryPort(1)
					require.NoError(b, err)
					packets := (size + port.ActiveMTU.Bytes() - 1) / port.ActiveMTU.Bytes() * b.N
					do := func() { streamed(b, ends, b.N) }
					messages := float64(b.N)
					if size == 64 {
						do = func() { bounced(b, ends, size, b.N) }
						messages, packets = 2*messages, 2*packets
					} else {
						b.SetBytes(int64(size))
					}
					before := cpuTime(b)
					b.ResetTimer()
					do()
					b.StopTimer()
					used := cpuTime(b) - before
					b.ReportMetric(float64(used.Nanoseconds())/messages, "cpu-ns/message")
					b.ReportMetric(2*float64(packets)/used.Seconds(), "packets/s/core")
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/messages, "ns/message")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}

// streamed writes messages from one end to the other, which polls.
func streamed(b *testing.B, ends [2]*place, messages int) {
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wcs [1]verbs.WC
		for !stop.Load() {
			ends[1].cq.Poll(wcs[:])
		}
	}()
	ends[0].writes(b, ends[1], verbs.OpRDMAWrite, messages)
	stop.Store(true)
	<-done
}

// bounced sends a message back and forth.
func bounced(b *testing.B, ends [2]*place, size, rounds int) {
	for _, e := range ends {
		e.ready(b, size)
	}
	other := make(chan error, 1)
	go func() { other <- ends[1].bounce(size, rounds, false) }()
	require.NoError(b, ends[0].bounce(size, rounds, true))
	require.NoError(b, <-other)
}

func (e *place) ready(t testing.TB, size int) {
	_, err := e.qp.PostRecv([]verbs.RecvWR{{SGList: []verbs.SGE{e.mem.SGE(0, size)}}})
	require.NoError(t, err)
}

// bounce receives messages and sends them back, or first sends one.
func (e *place) bounce(size, rounds int, begins bool) error {
	send := []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.mem.SGE(lossySize, size)}}}
	recv := []verbs.RecvWR{{SGList: []verbs.SGE{e.mem.SGE(0, size)}}}
	sent, received := 0, 0
	if begins {
		if _, err := e.qp.PostSend(send); err != nil {
			return err
		}
		sent++
	}
	var wcs [4]verbs.WC
	for done := 0; received < rounds || done < rounds; {
		n, err := e.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := wcs[i].Err(); err != nil {
				return err
			}
			if wcs[i].Opcode != verbs.WCRecv {
				done++
				continue
			}
			if received++; received < rounds {
				if _, err := e.qp.PostRecv(recv); err != nil {
					return err
				}
			}
			if sent < rounds {
				if _, err := e.qp.PostSend(send); err != nil {
					return err
				}
				sent++
			}
		}
	}
	return nil
}

// cpuTime is what this process has used.
func cpuTime(t testing.TB) time.Duration {
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
