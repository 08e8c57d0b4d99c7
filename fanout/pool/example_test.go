package pool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sluice-hpc/sluice/fanout/pool"
)

// A supplier and one of its workers. Usually each is a program of its own.
func Example() {
	ctx := context.Background()
	c := pool.Config{Secret: []byte("known to all of the pool")}
	s, err := pool.Listen(ctx, "127.0.0.1:0", c)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()

	worked := make(chan error, 1)
	go func() { worked <- work(ctx, c, s.Addr().String()) }()

	sent := make(chan error, 1)
	go func() {
		for _, word := range []string{"one", "two", "three"} {
			if err := s.Send(ctx, []byte(word)); err != nil {
				sent <- err
				return
			}
		}
		sent <- s.End(ctx)
	}()
	for {
		r, err := s.Receive(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%d %s\n", r.Seq(), r.Bytes())
		r.Release()
	}
	if err := errors.Join(<-sent, <-worked); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 0 ONE
	// 1 TWO
	// 2 THREE
}

func work(ctx context.Context, c pool.Config, supplier string) (err error) {
	w, err := pool.Join(ctx, c, supplier)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for {
		k, err := w.Receive(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := k.Done(bytes.ToUpper(k.Bytes())); err != nil {
			return err
		}
	}
}
