package qmp

import (
	"testing"

	"github.com/sluice-hpc/sluice/channel"
)

// BenchmarkMessage sends 8 bytes to oneself: what a start and a wait cost above those of
// package channel, of which there are two a message.
func BenchmarkMessage(b *testing.B) {
	c := over(b, "shm", 1)[0].DefaultComm()
	out, in := make([]byte, 8), make([]byte, 8)
	s := must(c.DeclareSendTo(must(DeclareMsgMem(out)), 0, 0))
	r := must(c.DeclareReceiveFrom(must(DeclareMsgMem(in)), 0, 0))
	b.Run("qmp", func(b *testing.B) {
		for b.Loop() {
			if r.Start() != nil || s.Start() != nil || r.Wait() != nil || s.Wait() != nil {
				b.Fatal("not sent")
			}
		}
	})
	b.Run("channel", func(b *testing.B) {
		for b.Loop() {
			if r.ch.Start() != nil || s.ch.Start() != nil || r.ch.Wait() != nil || s.ch.Wait() != nil {
				b.Fatal("not sent")
			}
		}
	})
	both := must(DeclareMultiple(s, r))
	b.Run("qmp multiple", func(b *testing.B) {
		for b.Loop() {
			if both.Start() != nil || both.Wait() != nil {
				b.Fatal("not sent")
			}
		}
	})
	b.Run("channel multiple", func(b *testing.B) {
		for b.Loop() {
			if both.ch.Start() != nil || both.ch.Wait() != nil {
				b.Fatal("not sent")
			}
		}
	})
}

// BenchmarkSum sums one number over a node alone: what a sum costs above that of package
// channel.
func BenchmarkSum(b *testing.B) {
	c := over(b, "shm", 1)[0].DefaultComm()
	b.Run("qmp", func(b *testing.B) {
		x := 0.0
		for b.Loop() {
			if c.SumDouble(&x) != nil {
				b.Fatal("not summed")
			}
		}
	})
	b.Run("channel", func(b *testing.B) {
		x := make([]float64, 1)
		for b.Loop() {
			if c.group.Run(background, channel.Allreduce(channel.Sum, x, x)) != nil {
				b.Fatal("not summed")
			}
		}
	})
}
