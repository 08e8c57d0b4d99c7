package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// Main is what a main function calls whose process is a rank of a job: it joins the job, calls
// f, and closes the node. An error of any of these, and one that [Must] was given, is written to
// standard error with the rank's number, and ends the process with status 1; else Main returns.
//
// f has a context that is never over. A panic in f ends the process as it does without Main, and
// the other ranks see that this one has died.
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

// runMain is Main but for the end of the process: false asks for it.
func runMain(w io.Writer, f func(ctx context.Context, n *Node) error, opts ...Option) bool {
	ctx := context.Background()
	n, err := Join(ctx, opts...)
	if err != nil {
		fmt.Fprintln(w, err)
		return false
	}
	// The error is told before the others know that this rank leaves: theirs follow from it.
	err = callMain(ctx, n, f)
	if err != nil {
		fmt.Fprintf(w, "rank %d of %d: %v\n", n.Rank(), n.Size(), err)
	}
	closing := n.Close()
	if closing != nil {
		fmt.Fprintf(w, "rank %d of %d: %v\n", n.Rank(), n.Size(), closing)
	}
	return errors.Join(err, closing) == nil
}

// callMain calls f and returns its error, or the one that it has panicked with by [Must].
func callMain(ctx context.Context, n *Node, f func(ctx context.Context, n *Node) error) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case mustError:
			err = v.error
		default:
			panic(v)
		}
	}()
	return f(ctx, n)
}

// mustError is an error that [Must] panics with.
type mustError struct{ error }

func (e mustError) Unwrap() error { return e.error }

// Must returns v, or panics if there is an error: for the beginning of a program, where every
// call must succeed. In the function that [Main] calls, and on its goroutine, the panic is an
// error that the function returns.
//
//	memory := channel.Must(n.Alloc(1 << 20))
func Must[T any](v T, err error) T {
	if err != nil {
		panic(mustError{err})
	}
	return v
}
