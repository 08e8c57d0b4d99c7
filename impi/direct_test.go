package impi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// TestRecvOrder: a Recv gets the first message that it matches of those that no receive
// posted before it gets, whether or not that is there already, whatever waits for
// others, and however long the messages and their memory are.
func TestRecvOrder(t *testing.T) {
	eachWay(t, func(t *testing.T, a, b *Comm) {
		rounds := need.InLong(10, 40)
		for seed := range uint64(rounds) {
			recvOrder(t, a, b, seed)
		}
	})
}

func recvOrder(t *testing.T, a, b *Comm, seed uint64) {
	type msg struct {
		tag, n int
		sync   bool
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	msgs := make([]msg, 60)
	for i := range msgs {
		msgs[i] = msg{rng.IntN(3), 8 + []int{0, rng.IntN(40), rng.IntN(5000)}[rng.IntN(3)], rng.IntN(6) == 0}
	}
	send := func() error {
		for i, m := range msgs {
			out := make([]byte, m.n)
			binary.NativeEndian.PutUint64(out, uint64(i))
			call := a.Send
			if m.sync {
				call = func(_ context.Context, buf []byte, dest, tag int) error { // no receive may wait for it yet
					r, err := a.Issend(buf, dest, tag)
					r.Free()
					return err
				}
			}
			if err := call(within(t), out, 1, m.tag); err != nil {
				return err
			}
		}
		return nil
	}
	type posted struct {
		r    Request
		buf  []byte
		want int
	}
	check := func(st Status, err error, buf []byte, want int) error {
		m := msgs[want]
		if errors.Is(err, ErrTruncated) != (m.n > len(buf)) || err != nil && !errors.Is(err, ErrTruncated) {
			return fmt.Errorf("message %d of %d bytes into %d: %w", want, m.n, len(buf), err)
		}
		if got := binary.NativeEndian.Uint64(buf); got != uint64(want) || st != (Status{Source: 0, Tag: m.tag, Len: m.n}) {
			return fmt.Errorf("message %d with %+v instead of %d", got, st, want)
		}
		return nil
	}
	receive := func() error {
		taken := make([]bool, len(msgs))
		var early []posted
		for range msgs {
			// Some message that no receive takes yet: the first that has its tag, or the first.
			var free []int
			for i := range msgs {
				if !taken[i] {
					free = append(free, i)
				}
			}
			want, tag := free[0], AnyTag
			if rng.IntN(2) == 0 {
				tag = msgs[free[rng.IntN(len(free))]].tag
				for _, i := range free {
					if want = i; msgs[i].tag == tag {
						break
					}
				}
			}
			taken[want] = true
			buf := make([]byte, max(8, msgs[want].n-rng.IntN(2)*rng.IntN(20)))
			source := -rng.IntN(2)
			if rng.IntN(3) == 0 {
				r := irecv(t, b, buf, source, tag)
				early = append(early, posted{r, buf, want})
				continue
			}
			st, err := b.Recv(within(t), buf, source, tag)
			if err := check(st, err, buf, want); err != nil {
				return err
			}
		}
		for _, p := range early {
			st, err := p.r.Wait(within(t))
			if err := check(st, err, p.buf, p.want); err != nil {
				return err
			}
		}
		return nil
	}
	if seed%2 == 0 {
		both(t, send)
		both(t, receive)
	} else {
		both(t, send, receive)
	}
}
