package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sluice-hpc/sluice/internal/boot"
)

// Main runs a rank of a job: it joins the job, calls f, and closes the node. It is to be called
// from the main function. An error of any of these steps, or one passed to [Must], is written to
// standard error, with the rank's number if that is known, and the process exits with
// status 1; otherwise Main returns.
//
// The context of f never ends. A panic in f ends the process as it does without Main, after a line
// with the rank's number, and the other ranks see that this one has died.
//
//	func main() {
//		channel.Main(func(ctx context.Context, n *channel.Node) error {
//			fmt.Printf("rank %d of %d\n", n.Rank(), n.Size())
//			return nil
//		})
//	}
func Main(f func(ctx context.Context, n *Node) error, opts ...Option) {
	if !runMain(os.Stderr, f, opts...) {
		os.Exit(1)
	}
}

// runMain is Main without the exit, which it requests by returning false.
func runMain(w io.Writer, f func(ctx context.Context, n *Node) error, opts ...Option) bool {
	ctx := context.Background()
	n, err := Join(ctx, opts...)
	if err != nil {
		if rank, size, ok := boot.Place(ctx); ok {
			err = fmt.Errorf("rank %d of %d: %w", rank, size, err)
		}
		fmt.Fprintln(w, err)
		return false
	}
	// Report the error before the others learn that this rank leaves: their errors follow from it.
	err = callMain(ctx, n, w, f)
	if err != nil {
		fmt.Fprintf(w, "rank %d of %d: %v\n", n.Rank(), n.Size(), err)
	}
	closing := n.Close()
	if closing != nil {
		fmt.Fprintf(w, "rank %d of %d: %v\n", n.Rank(), n.Size(), closing)
	}
	return errors.Join(err, closing) == nil
}

// callMain calls f and returns its error, or the one with which [Must] panicked. Before another panic it
// writes which rank panics: the trace does not say that.
func callMain(ctx context.Context, n *Node, w io.Writer, f func(ctx context.Context, n *Node) error) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case mustError:
			err = v.error
		default:
			fmt.Fprintf(w, "rank %d of %d: panic\n", n.Rank(), n.Size())
			panic(v)
		}
	}()
	return f(ctx, n)
}

// mustError is the error with which [Must] panics.
type mustError struct{ error }

func (e mustError) Unwrap() error { return e.error }

// Must returns v, or panics if err is not nil. Use it at the beginning of a program, where every
// call must succeed. On the goroutine of the function that [Main] calls, Main handles the panic
// as if the function had returned the error.
//
//	memory := channel.Must(n.Alloc(1 << 20))
func Must[T any](v T, err error) T {
	if err != nil {
		panic(mustError{err})
	}
	return v
}
